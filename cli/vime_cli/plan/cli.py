"""``vime plan RECIPE.toml``: what a run would take, where, and what would break first; nothing is started."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

from vime_cli.train import load_plugins
from vime_core.api import ConfigError, UsageError
from vime_core.config import RunArguments
from vime_core.plugin import load_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_cli.plan.report import Report

_EPILOG = """All other arguments are those of vime train: a recipe and flags. Exit status: 0 when every stage fits, 1
when one cannot fit, 2 when the configuration is wrong or the device's memory is not known."""


def plan(argv: list[str]) -> int:
    """Plan a run.

    Raises:
        UsageError: an option of the command, the configuration or a plugin is wrong.
    """
    chosen, rest = _parser().parse_known_args(argv)
    if not rest:
        raise UsageError("nothing to plan: give a recipe (vime plan recipes/quickstart.toml) or flags of vime train")
    options = load_target("vime_cli.plan.command:PlanOptions")(
        chosen.model_config,
        chosen.memory_gib,
        chosen.devices_per_node,
        chosen.prompt_tokens,
        chosen.response_tokens,
        chosen.calibrate,
    )
    arguments = RunArguments.read(rest, os.environ)
    plugins = load_plugins(arguments)
    resolved = arguments.resolve(plugins.options)
    found = load_target("vime_cli.plan.command:reports")(resolved, plugins, options)
    _print(found, as_json=chosen.json)
    return _status(found)


def _print(found: Sequence[Report], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([report.to_plain() for report in found], indent=2))
        return
    for report in found:
        print(f"# stage {report.stage}")
        for line in load_target("vime_cli.plan.text:lines")(report):
            print(line)


def _status(found: Sequence[Report]) -> int:
    if any(report.breaks for report in found):
        return 1
    unknown = [r.plan.inputs.machine for r in found if r.plan.inputs.machine.memory is None]
    if unknown:
        raise ConfigError(f"no verdict: the memory of device {unknown[0].device} is not known here; give --memory-gib")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vime plan",
        description="What a run takes, where, and what breaks first.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model-config", metavar="FILE", help="a Hugging Face config.json; default: of --hf-checkpoint"
    )
    parser.add_argument("--memory-gib", type=_positive, metavar="G", help="memory of a device, where it is not here")
    parser.add_argument("--devices-per-node", type=int, metavar="N", help="default: trainer ranks a node, or all here")
    for name in ("prompt", "response"):
        parser.add_argument(
            f"--{name}-tokens", type=_quantiles, default=(), metavar="N[,N...]", help=f"quantiles of {name} lengths"
        )
    parser.add_argument("--calibrate", action="store_true", help="measure this machine and estimate a step's time")
    parser.add_argument("--json", action="store_true", help="all numbers as JSON")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _quantiles(text: str) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(","))
    if min(values) < 1 or list(values) != sorted(values):
        raise argparse.ArgumentTypeError(f"{text}: positive numbers of tokens, ascending")
    return values
