"""``vime explain loss --run R --step K --sample I``: from rewards and log-probs to a sample's share of the loss."""

from __future__ import annotations

import argparse
from pathlib import Path

from vime_core.plugin import load_target


def explain(argv: list[str]) -> int:
    """Run ``vime explain ...``."""
    parser = argparse.ArgumentParser(prog="vime explain", description="Where a number of a run comes from.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    loss = commands.add_parser("loss", help="a sample's share of the loss, with every denominator")
    loss.add_argument("--run", required=True, type=Path, metavar="R", help="the run's folder")
    loss.add_argument("--step", required=True, type=int, metavar="K", help="rollout step")
    loss.add_argument("--sample", required=True, type=int, metavar="I", help="place of the sample in the step, from 0")
    loss.add_argument("--stage", metavar="NAME", help="stage of the run, where it has several")
    loss.add_argument("--plugin", action="append", default=[], metavar="P", help="load this plugin, too")
    return _loss(parser.parse_args(argv))


def _loss(chosen: argparse.Namespace) -> int:
    from vime_core.plugin import Plugins

    folder = chosen.run / chosen.stage if chosen.stage else chosen.run
    inputs = load_target("vime_core.observe.loss_inputs:read_loss_inputs")(folder / "loss", chosen.step)
    algorithm = Plugins.load(chosen.plugin).algorithms.resolve(inputs.facts["algorithm"])()
    explanation = load_target("vime_cli.explain.explanation:explain_sample")(inputs, algorithm, chosen.sample)
    for line in load_target("vime_cli.explain.text:lines")(explanation):
        print(line)
    return 0
