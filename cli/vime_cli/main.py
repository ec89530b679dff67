"""The ``vime`` command: finds the command by name, hands it its arguments untouched, and words errors for the user.

An error that vime raises on purpose is printed as ``vime: ...``, one line a violation, and sets the exit status; with
VIME_DEBUG=1 its traceback comes first. Anything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from vime_cli.commands import COMMANDS, find
from vime_core.api import ConfigError, UsageError, VimeError

INTERRUPTED = 130
#: as a shell reports a command that SIGPIPE ended
PIPE_BROKEN = 141


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
        traceback.print_exception(error)
    lines = error.violations if isinstance(error, ConfigError) else [str(error)]
    for line in lines:
        print(f"vime: {line}", file=sys.stderr)
    return error.exit_code


def _help() -> int:
    """typer renders the table. Its commands are stubs: parameters would make it import pydantic, and rich costs more
    than all of the rest."""
    import typer

    app = typer.Typer(
        name="vime",
        help="Reinforcement-learning post-training of language models.",
        epilog="vime COMMAND --help shows a command's own help. Plugins may add commands: vime plugins list.",
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for name, command in COMMANDS.items():
        app.command(name, help=command.help)(_stub)
    app(["--help"], prog_name="vime", standalone_mode=False)
    return 0


def _stub() -> None:
    """Stands in the listing for a command that ``_dispatch`` runs."""


if __name__ == "__main__":
    sys.exit(main())
