"""The ``vime`` command: finds the command by name, hands it its arguments untouched, and words errors for the user.

An error that vime raises on purpose is printed as ``vime: ...``, one line a violation, and sets the exit status; with
VIME_DEBUG=1 its traceback comes first. Anything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from vime_core.api import ConfigError, UsageError, VimeError

Run = Callable[[list[str]], int]

INTERRUPTED = 130
#: as a shell reports a command that SIGPIPE ended
PIPE_BROKEN = 141

#: the core's commands: (what runs it, its line in the listing). A target takes its arguments as they were typed and
#: returns the exit status; the table is static, so that ``vime --help`` costs no import of what commands do
COMMANDS = {
    "train": ("vime_cli.train:train", "Train a model: vime train RECIPE.toml [--flag value ...]."),
    "plan": (
        "vime_cli.plan.cli:plan",
        "What a run takes, and what breaks first: vime plan RECIPE.toml [--flag value ...].",
    ),
    "plugins": ("vime_cli.plugins:plugins", "List plugins, show or check one, begin a new one."),
    "algorithms": ("vime_cli.algorithms:algorithms", "Algorithms and their cards: vime algorithms list|info NAME."),
    "doctor": ("vime_cli.doctor.cli:doctor", "Look for what would keep a run from working here, with its fix."),
    "explain": (
        "vime_cli.explain.cli:explain",
        "Arithmetic of a sample's loss: vime explain loss --run R --step K --sample I.",
    ),
    "version": ("vime_cli.version:version", "Show the versions of vime and of the stack below it."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()  # what is still in the buffer may break the pipe, too
        return code
    except BrokenPipeError:
        return _reader_left()
    except VimeError as error:
        return _report(error)
    except KeyboardInterrupt:
        print("vime: interrupted", file=sys.stderr)
        return INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        return _help()
    if arguments[0] == "--version":
        return find("version")([])
    if arguments[0].startswith("-"):
        raise UsageError(f"no option '{arguments[0]}' before a command; vime --help lists the commands")
    return find(arguments[0])(arguments[1:])


def _reader_left() -> int:
    """``vime ... | head``: nobody reads on, so the command ends without a word, and so does the interpreter's flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_BROKEN


def _report(error: VimeError) -> int:
    if os.environ.get("VIME_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    lines = error.violations if isinstance(error, ConfigError) else [str(error)]
    for line in lines:
        print(f"vime: {line}", file=sys.stderr)
    return error.exit_code


def find(name: str) -> Run:
    """The command of this name, the core's or a plugin's (``vime_register_commands``, of the same form).

    Raises:
        UsageError: there is none; names the nearest.
    """
    if name in COMMANDS:
        from vime_core.plugin import load_target

        command: Run = load_target(COMMANDS[name][0])
        return command
    from vime_core.plugin import Plugins, nearest

    added = Plugins.load().commands
    if name in added.names():
        return added.resolve(name)
    hint = nearest(name, [*COMMANDS, *added.names()])
    raise UsageError(f"no command '{name}'{hint}; vime --help lists them")


def _help() -> int:
    print("Usage: vime COMMAND [ARGS]...\n\nReinforcement-learning post-training of language models.\n\nCommands:")
    for name, (_, line) in COMMANDS.items():
        print(f"  {name:<11}{line}")
    print("\nvime COMMAND --help shows a command's own help. Plugins may add commands: vime plugins list.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
