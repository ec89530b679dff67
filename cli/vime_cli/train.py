"""``vime train``: from arguments to configurations, and on to the pipeline, the first to import anything heavy."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from vime_core.api import UsageError
from vime_core.config import PLUGINS, ResolvedRun, RunArguments, help_text, to_toml

if TYPE_CHECKING:
    from vime_core.plugin import Plugins

_HELP = ("--help", "-h")


def train(argv: list[str]) -> int:
    """Run a recipe and flags. Returns the exit status: 0 when every stage ended well and reached its target.

    Raises:
        VimeError: with the message for the user; ``exit_code`` 2 when nothing was started.
    """
    for word in _HELP:
        if word in argv:
            return _help(argv[: argv.index(word)], argv[argv.index(word) + 1 :])
    show = "--show-config" in argv
    rest = [word for word in argv if word != "--show-config"]
    if not rest and not show:
        raise UsageError(
            "nothing to train: give a recipe (vime train recipes/quickstart.toml) or flags; --help lists them"
        )
    arguments = RunArguments.read(rest, os.environ)
    plugins = load_plugins(arguments)
    plugins.process_started("driver")
    resolved = arguments.resolve(plugins.options)
    if show:
        return _show(resolved)
    print(_opening(resolved), flush=True)  # what follows imports the stack, which takes seconds
    from vime_core.pipeline import run_plan

    try:
        return run_plan(resolved, plugins)
    finally:
        for line in plugins.failures():
            print(f"warning: {line}", file=sys.stderr)


def _opening(resolved: ResolvedRun) -> str:
    stages = [stage.name for stage in resolved.stages]
    named = f", stages {', '.join(stages)}" if len(stages) > 1 else ""
    return f"{resolved.stages[0].config.run.name}{named}: checking the configuration, then starting"


def load_plugins(arguments: RunArguments) -> Plugins:
    """The plugins that recipe, environment and flags ask for."""
    from vime_core.plugin import PluginOutput, Plugins, trace_on_stderr

    others = {name: value for name, value in arguments.environ.items() if name != PLUGINS}  # among the specs already
    early = arguments.before_plugins()
    output = PluginOutput(trace=trace_on_stderr if early.trace_hooks else None)
    return Plugins.load(arguments.plugin_specs, strict=early.strict_plugins, environ=others, output=output)


def _help(before: list[str], after: list[str]) -> int:
    topic = after[0] if after and not after[0].startswith("-") else None
    options = {} if topic else load_plugins(RunArguments.read([*before, *after], os.environ)).options
    print(help_text(options, topic), end="")
    return 0


def _show(resolved: ResolvedRun) -> int:
    several = len(resolved.stages) > 1
    for stage in resolved.stages:
        if several:
            print(f"# ---- stage {stage.name}")
        print(to_toml(stage.config))
    return 0
