"""Metrics as pairs (sum, count): added up over micro-batches and ranks, divided once.

A token metric's count is its number of trainable tokens. A loss is already weighted: its pair has count None, and its
sum over everything is the value. So logged numbers obey the same invariances as the loss (no mean of means).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from vime_core.algorithms.common import trainable


@dataclass(frozen=True)
class Pair:
    """sum, count: tensors of no dimension. count None: the sum is the value."""

    sum: torch.Tensor
    count: torch.Tensor | None

    def __add__(self, other: Pair) -> Pair:
        count = None if self.count is None or other.count is None else self.count + other.count
        return Pair(self.sum + other.sum, count)


Pairs = Mapping[str, Pair]


def token_pair(x: torch.Tensor, mask: torch.Tensor) -> Pair:
    """Sum over trainable tokens and their number. x: [r] numbers or bools."""
    values = x.detach() if x.is_floating_point() else x.detach().float()
    return Pair(trainable(mask, values).sum(), mask.sum())


def weighted_pair(x: torch.Tensor) -> Pair:
    """A part of a loss whose weights are already in it. x: no dimension."""
    return Pair(x.detach(), None)


def add_pairs(parts: Iterable[Pairs]) -> dict[str, Pair]:
    """Name by name; a name that some parts lack counts there as nothing."""
    total: dict[str, Pair] = {}
    for part in parts:
        for name, pair in part.items():
            total[name] = total[name] + pair if name in total else pair
    return total


def to_vector(pairs: Pairs) -> torch.Tensor:
    """[2k] float32 sums then counts in the order of sorted names, for one all-reduce. Every rank that ran a
    micro-batch, even an empty one, has the same names."""
    ordered = [pairs[name] for name in sorted(pairs)]
    counts = [pair.sum.new_zeros(()) if pair.count is None else pair.count for pair in ordered]
    return torch.stack([x.to(torch.float32) for x in [pair.sum for pair in ordered] + counts])


def from_vector(vector: torch.Tensor, like: Pairs) -> dict[str, Pair]:
    """The inverse, with names and kinds of ``like``."""
    names, k = sorted(like), len(like)
    return {name: Pair(vector[i], None if like[name].count is None else vector[k + i]) for i, name in enumerate(names)}


def finish(pairs: Pairs) -> dict[str, float]:
    """The values. A token metric without any token is left out: there is nothing to report."""
    values = {}
    for name, pair in pairs.items():
        if pair.count is None:
            values[name] = float(pair.sum)
        elif float(pair.count):
            values[name] = float(pair.sum) / float(pair.count)
    return values
