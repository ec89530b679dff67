"""Writes ``docs/metrics.md`` from the catalogue: ``python -m vime_cli.documents.metrics [FILE]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vime_core.observe import Metric, metric_groups

_HEAD = """\
# Metrics

<!-- Written by `python -m vime_cli.documents.metrics`; edit vime_core/observe/metrics.toml instead. -->

Each run writes these to `metrics.jsonl` in its run folder (one JSON object a line, with the `step`) and to TensorBoard.
In a name, `<part>` stands for one part that data, recipe or plugin choose. `nat` is the unit of natural-log
probabilities. Steps count from 0; the `step` of an evaluation is the number of steps finished by then. Where a rollout
step has several optimizer steps, means and sums of the trainer are averaged over them. A value that is not finite is
written as `null`, and `non_finite` counts them in its line. A metric that was not measured in a step is absent; it is
never 0.

*Token mean*: every trainable token of the step counts alike. *Sample mean*: every sample does. *Weighted sum*: summed
with the step's own loss weights, which the aggregation gives.
"""


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(heading, group) for heading, group in metric_groups().items())])


def _section(heading: str, group: Sequence[Metric]) -> str:
    rows = ["| metric | unit | what it tells | definition | kind | axis |", "|---|---|---|---|---|---|"]
    return "\n".join([f"## {heading}", "", *rows, *(_row(metric) for metric in group), ""])


def _row(metric: Metric) -> str:
    prose = (_escape(text) for text in (metric.unit, metric.meaning, metric.definition, metric.mean))
    return "| " + " | ".join([f"`{metric.name}`", *prose, f"`{metric.axis}`"]) + " |"


def _escape(text: str) -> str:
    """What Markdown would read as table, emphasis or HTML."""
    for sign in "|*_":
        text = text.replace(sign, "\\" + sign)
    return text.replace("<", "&lt;")


def main(arguments: Sequence[str]) -> None:
    target = Path(arguments[0]) if arguments else Path(__file__).parents[3] / "docs" / "metrics.md"
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
