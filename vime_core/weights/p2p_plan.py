"""Who would send which slice to whom, if every trainer rank sent its own shard instead of rank 0 the whole.

A plan only: pure Python over shapes and layouts, no device and no torch. A tensor lies on trainer ranks as equal slices
along one axis (tensor parallelism), each slice on several ranks (data parallelism); on engine workers likewise. The
plan lists, for each worker's slice, the pieces that make it up and the rank that sends each. Of several ranks that have
a piece, the one on the worker's own machine is preferred, then the one that has the least to send.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vime_core.api import ConfigError


@dataclass(frozen=True)
class TensorSharding:
    """How one tensor lies on the members of a side.

    Attributes:
        axis: along which it is partitioned; None: every holder has all of it.
        holders: holders[i] are the members that have slice i; for one that is not partitioned there is one entry.
    """

    axis: int | None
    holders: tuple[tuple[int, ...], ...]

    @property
    def parts(self) -> int:
        return len(self.holders)


@dataclass(frozen=True)
class ShardedTensor:
    """One tensor and where it lies on both sides."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    trainer: TensorSharding
    engine: TensorSharding


#: a box in a tensor: (start, stop) along each axis
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Transfer:
    """One piece: ``box`` in the whole tensor, and where it begins in the sender's and the receiver's slice."""

    name: str
    sender: int
    receiver: int
    box: Box
    source: tuple[int, ...]
    target: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class TransferPlan:
    """All pieces of one update, in an order that is the same everywhere."""

    transfers: tuple[Transfer, ...]

    def sent(self) -> dict[int, int]:
        """Bytes that each trainer rank sends."""
        return _totals((one.sender, one.nbytes) for one in self.transfers)

    def received(self) -> dict[int, int]:
        """Bytes that each engine worker receives."""
        return _totals((one.receiver, one.nbytes) for one in self.transfers)

    def rounds(self) -> list[list[Transfer]]:
        """The pieces in rounds in which nobody sends twice or receives twice, largest first."""
        rounds: list[tuple[set[int], set[int], list[Transfer]]] = []
        for one in sorted(self.transfers, key=lambda t: (-t.nbytes, t.name, t.receiver, t.box)):
            free = (r for r in rounds if one.sender not in r[0] and one.receiver not in r[1])
            chosen = next(free, None)
            if chosen is None:
                chosen = (set(), set(), [])
                rounds.append(chosen)
            chosen[0].add(one.sender)
            chosen[1].add(one.receiver)
            chosen[2].append(one)
        return [transfers for _, _, transfers in rounds]


def make_plan(
    weights: Sequence[ShardedTensor],
    trainer_hosts: Mapping[int, str] | None = None,
    engine_hosts: Mapping[int, str] | None = None,
) -> TransferPlan:
    """Pieces for every holder of every engine slice.

    Args:
        trainer_hosts, engine_hosts: member -> machine, where it is known.

    Raises:
        ConfigError: a tensor cannot be partitioned as its sharding says.
    """
    here, there = trainer_hosts or {}, engine_hosts or {}
    load: dict[int, int] = {}
    transfers = []
    for weight in sorted(weights, key=lambda w: (-math.prod(w.shape) * w.itemsize, w.name)):
        for part, holders in enumerate(weight.engine.holders):
            wanted = slice_of(weight, weight.engine, part)
            for receiver in holders:
                for piece, box in _pieces(weight, wanted):
                    candidates = weight.trainer.holders[piece]
                    close = [rank for rank in candidates if rank in here and here[rank] == there.get(receiver)]
                    sender = min(close or candidates, key=lambda rank: (load.get(rank, 0), rank))
                    nbytes = math.prod(extent_of(box)) * weight.itemsize
                    load[sender] = load.get(sender, 0) + nbytes
                    begin = slice_of(weight, weight.trainer, piece)
                    transfers.append(
                        Transfer(weight.name, sender, receiver, box, _offset(box, begin), _offset(box, wanted), nbytes)
                    )
    return TransferPlan(tuple(transfers))


# boxes -------------------------------------------------------------------------------------------------------------
def slice_of(weight: ShardedTensor, sharding: TensorSharding, part: int) -> Box:
    """Where slice ``part`` lies in the whole tensor."""
    box = [(0, size) for size in weight.shape]
    if sharding.axis is not None:
        size = weight.shape[sharding.axis]
        if size % sharding.parts:
            raise ConfigError(
                f"{weight.name} {list(weight.shape)}: {size} along axis {sharding.axis} cannot be "
                f"partitioned in {sharding.parts}"
            )
        step = size // sharding.parts
        box[sharding.axis] = (part * step, (part + 1) * step)
    elif sharding.parts != 1:
        raise ConfigError(f"{weight.name}: {sharding.parts} slices but no axis to partition along")
    return tuple(box)


def _pieces(weight: ShardedTensor, wanted: Box) -> Iterator[tuple[int, Box]]:
    """(trainer slice, box) of each part of ``wanted``; they do not overlap."""
    for part in range(weight.trainer.parts):
        have = slice_of(weight, weight.trainer, part)
        box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(have, wanted))
        if all(start < stop for start, stop in box):
            yield part, box


def _offset(box: Box, inside: Box) -> tuple[int, ...]:
    return tuple(start - origin for (start, _), (origin, _) in zip(box, inside))


def extent_of(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _totals(pairs: Iterator[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for member, nbytes in pairs:
        found[member] = found.get(member, 0) + nbytes
    return found
