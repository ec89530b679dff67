"""Writes ``docs/algorithms.md`` from the core's cards: ``python -m vime_cli.documents.algorithms [FILE]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.plugin import Plugins

if TYPE_CHECKING:
    from vime_core.algorithms import Described

_HEAD = """\
# Algorithms

<!-- Written by `python -m vime_cli.documents.algorithms`; edit the cards in vime_core/algorithms/ instead. -->

An algorithm is chosen by `--advantage-estimator NAME`; a name of a plugin's, `pkg.mod:Class` and `file.py:Class` work,
too. `vime algorithms info NAME` prints what is here. Options that are flags of `vime train` are given as flags, the
others in `--algorithm-options '{"name": value}'`; an option that the algorithm does not read is an error.

The loss of an optimizer step is a sum over its trainable tokens of `weight * correction * loss of the token`, with the
weight from `--aggregation`, the correction from `--correction` or `--use-tis`, plus the trainer's own terms: the
entropy bonus (`--entropy-coef`) and the KL to a reference (`--use-kl-loss`). It does not depend on packing, order or
ranks. `vime explain loss` prints that sum for one sample of a run.

One rule says who is in a group's statistics, for every algorithm that compares within a group: the samples that are
there, with a score and a token to train on. Unscored, empty and fully masked ones are not there; a sample that was left
out for another reason (its length, say, with `--mask-truncated-samples`) had its reward and counts. A group is constant
when its largest and smallest reward are equal up to rounding, relative to their size; its advantages are then exactly
0, as is that of the only one there (`train/groups_of_one`).

| name | summary |
|---|---|
"""


def described() -> list[Described]:
    """The core's algorithms, in the order of their registration."""
    from vime_core.algorithms import Described

    found = Plugins.load(autoload=False, environ={}).algorithms
    return [Described.of(p.name, p.plugin, p.summary, p.load()) for p in found]


def render() -> str:
    """The whole page."""
    cards = described()
    table = "".join(f"| [`{card.name}`](#{card.name}) | {card.summary} |\n" for card in cards)
    return _HEAD + table + "".join("\n" + "\n".join(_section(card)) + "\n" for card in cards)


def _section(card: Described) -> Iterator[str]:
    yield from (f"## {card.name}", "")
    for title, text in card.rows:
        formula = title in ("advantage", "loss of a token", "options")
        yield f"* **{title}**: " + (f"`{text}`" if formula else text)
    yield from (f"* {note}" for note in card.notes)


def main(arguments: Sequence[str]) -> None:
    target = Path(arguments[0]) if arguments else Path(__file__).parents[3] / "docs" / "algorithms.md"
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
