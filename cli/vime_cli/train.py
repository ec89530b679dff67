"""``vime train``: from arguments to a plan, and on to the pipeline, which is the first to import anything heavy."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vime_core.api import UsageError
from vime_core.config import PLUGINS, Plan, dump, help_text, resolve, scan_plugins, scan_strict, scan_trace

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
    plugins = load_plugins(rest, os.environ)
    plugins.process_started("driver")
    plan = resolve(rest, os.environ, plugins.options)
    if show:
        return _show(plan)
    from vime_core.pipeline import run_plan

    try:
        return run_plan(plan, plugins)
    finally:
        for line in plugins.failures():
            print(f"warning: {line}", file=sys.stderr)


def load_plugins(argv: list[str], environ: Mapping[str, str]) -> Plugins:
    """The plugins that recipe, environment and flags ask for."""
    from vime_core.plugin import Plugins

    others = {name: value for name, value in environ.items() if name != PLUGINS}  # already among the scanned
    strict, trace = scan_strict(argv, environ), scan_trace(argv, environ)
    return Plugins.load(scan_plugins(argv, environ), strict=strict, trace=trace, environ=others)


def _help(before: list[str], after: list[str]) -> int:
    topic = after[0] if after and not after[0].startswith("-") else None
    options = {} if topic else load_plugins([*before, *after], os.environ).options
    print(help_text(options, topic), end="")
    return 0


def _show(plan: Plan) -> int:
    several = len(plan.stages) > 1
    for stage in plan.stages:
        if several:
            print(f"# ---- stage {stage.name}")
        print(dump.to_toml(stage.config))
    return 0
