"""Micro-batches of a step, from the packer that training uses (``batch/bins.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_cli.plan.layout import Layout
from vime_cli.plan.lengths import Lengths
from vime_core.batch import pack_by_tokens, split_until

if TYPE_CHECKING:
    from vime_core.config import Config


@dataclass(frozen=True)
class Packing:
    """Of a rollout step.

    Attributes:
        optimizer_steps: of a rollout step. micro_batches: of one data-parallel rank in one optimizer step.
        cap: tokens that a micro-batch may have on one context rank; None without dynamic batches.
        largest: tokens of the largest micro-batch on one context rank, as packed.
        bound: tokens that a micro-batch can have at most on one context rank, whatever the samples' lengths.
        forward: the same of a pass without gradient, which may have a cap of its own.
        fill: ratio of tokens to the cap; None without a cap.
        predicted: response tokens of the largest micro-batch, at most.
    """

    optimizer_steps: int
    micro_batches: int
    cap: int | None
    largest: int
    bound: int
    forward: int
    fill: float | None
    predicted: int


def packing(config: Config, layout: Layout, lengths: Lengths) -> Packing:
    """Of the lengths of one step, in the order in which they are drawn."""
    train = config.train
    each = 2 * layout.cp if layout.cp > 1 else 1
    sizes = [-(-total // each) * each for total in lengths.totals]
    steps = max(len(sizes) // max(config.global_batch, 1), 1)
    count = len(sizes) // steps
    cap = train.max_tokens_per_gpu if train.use_dynamic_batch_size else None
    whole = cap * layout.cp if cap else None
    bins, largest, predicted = 0, 0, 0
    for step in range(steps):
        mine = sizes[step * count : (step + 1) * count]
        groups = _bins(mine, whole, train.micro_batch_size)
        groups = split_until(groups, mine, layout.dp)
        bins = max(bins, len(groups))
        largest = max(largest, max(sum(mine[i] for i in group) for group in groups))
        answers = [response for _, response in lengths.samples[step * count : (step + 1) * count]]
        predicted = max(predicted, max(sum(answers[i] for i in group) for group in groups))
    longest = max(max(sizes), lengths.longest)
    bound = min(whole or train.micro_batch_size * longest, count * longest)
    own = train.log_probs_max_tokens_per_gpu if cap else None
    forward = min(max(own * layout.cp, longest), len(sizes) * longest) if own else bound
    fill = sum(sizes) / (bins * steps * whole) if whole else None
    scale = bound / largest if largest else 1.0
    return Packing(
        steps,
        bins // layout.dp,
        cap,
        largest // layout.cp,
        bound // layout.cp,
        forward // layout.cp,
        fill,
        round(predicted * scale) // layout.cp,
    )


def _bins(sizes: list[int], whole: int | None, micro: int) -> list[list[int]]:
    if whole is None:
        return [list(range(at, min(at + micro, len(sizes)))) for at in range(0, len(sizes), micro)]
    return pack_by_tokens(sizes, max(whole, max(sizes)))
