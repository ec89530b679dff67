"""Carries a peer-to-peer plan out on plain numbers, which is how a plan is proved without a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vime_core.weights.p2p_plan import Box, ShardedTensor, TensorSharding, TransferPlan, extent_of, slice_of

#: (member, tensor name) -> index in its own slice -> value
Cells = dict[tuple[int, str], dict[tuple[int, ...], int]]


def scatter(weights: Sequence[ShardedTensor], side: str) -> Cells:
    """What each member of "trainer" or "engine" should have: every element's value is its place in the whole tensor."""
    cells: Cells = {}
    for weight in weights:
        sharding: TensorSharding = getattr(weight, side)
        for part, holders in enumerate(sharding.holders):
            box = slice_of(weight, sharding, part)
            values = {_minus(index, box): _flat(index, weight.shape) for index in _indices(box)}
            for member in holders:
                cells[member, weight.name] = dict(values)
    return cells


def simulate(plan: TransferPlan, sources: Cells) -> Cells:
    """What the engine workers have once every transfer was made.

    Raises:
        KeyError: a sender does not have what it should send. ValueError: an element was sent twice.
    """
    result: Cells = {}
    for one in plan.transfers:
        mine, theirs = sources[one.sender, one.name], result.setdefault((one.receiver, one.name), {})
        for step in _indices(tuple((0, extent) for extent in extent_of(one.box))):
            target = tuple(a + b for a, b in zip(one.target, step))
            if target in theirs:
                raise ValueError(f"{one.name}{list(target)} of worker {one.receiver} is sent twice")
            theirs[target] = mine[tuple(a + b for a, b in zip(one.source, step))]
    return result


def _indices(box: Box) -> Iterator[tuple[int, ...]]:
    if not box:
        yield ()
        return
    (start, stop), *rest = box
    for first in range(start, stop):
        for others in _indices(tuple(rest)):
            yield (first, *others)


def _minus(index: tuple[int, ...], box: Box) -> tuple[int, ...]:
    return tuple(i - start for i, (start, _) in zip(index, box))


def _flat(index: tuple[int, ...], shape: Sequence[int]) -> int:
    place = 0
    for i, extent in zip(index, shape):
        place = place * extent + i
    return place
