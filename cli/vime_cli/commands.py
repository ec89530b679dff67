"""The core's commands: a static table, so that ``vime --help`` costs no import of what they do.

A target takes its arguments as they were typed and returns the exit status. Plugins add commands of the same form
through ``vime_register_commands``; those are looked up only when the table has no such name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vime_core.api import UsageError
from vime_core.plugin import load_target, nearest

Run = Callable[[list[str]], int]


@dataclass(frozen=True)
class Command:
    target: str
    help: str


COMMANDS = {
    "train": Command("vime_cli.train:train", "Train a model: vime train RECIPE.toml [--flag value ...]."),
    "plan": Command(
        "vime_cli.plan.cli:plan", "What a run takes, and what breaks first: vime plan RECIPE.toml [--flag value ...]."
    ),
    "plugins": Command("vime_cli.plugins:plugins", "List plugins, show or check one, begin a new one."),
    "algorithms": Command(
        "vime_cli.algorithms:algorithms", "Algorithms and their cards: vime algorithms list|info NAME."
    ),
    "doctor": Command("vime_cli.doctor.cli:doctor", "Look for what would keep a run from working here, with its fix."),
    "explain": Command(
        "vime_cli.explain.cli:explain", "Arithmetic of a sample's loss: vime explain loss --run R --step K --sample I."
    ),
    "version": Command("vime_cli.version:version", "Show the versions of vime and of the stack below it."),
}


def find(name: str) -> Run:
    """The command of this name, the core's or a plugin's.

    Raises:
        UsageError: there is none; names the nearest.
    """
    if name in COMMANDS:
        command: Any = load_target(COMMANDS[name].target)
        return command
    from vime_core.plugin import Plugins

    added = Plugins.load().commands
    if name in added.names():
        return added.resolve(name)
    hint = nearest(name, [*COMMANDS, *added.names()])
    raise UsageError(f"no command '{name}'{hint}; vime --help lists them")
