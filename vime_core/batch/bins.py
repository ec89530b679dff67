"""Packing of items into bins, and dealing of bins to ranks: integers in, lists of positions out, no randomness.

Every rank computes the same answer from the same sizes, so nothing has to be sent around.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

Bin = list[int]


def pack_by_tokens(sizes: Sequence[int], cap: int) -> list[Bin]:
    """Best-fit decreasing: the largest item first, each into the fullest bin that still has room for it.

    As good a bound as first-fit decreasing (11/9 of the fewest possible bins), at n log n.
    Every size must be at most ``cap``.
    """
    bins: list[Bin] = []
    rooms: list[tuple[int, int]] = []  # (tokens left, bin), ascending
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        at = bisect_left(rooms, (sizes[item], -1))
        if at < len(rooms):
            room, chosen = rooms.pop(at)
        else:
            room, chosen = cap, len(bins)
            bins.append([])
        bins[chosen].append(item)
        insort(rooms, (room - sizes[item], chosen))
    return bins


def split_until(bins: Sequence[Bin], sizes: Sequence[int], multiple: int) -> list[Bin]:
    """Halve the largest bins until their number divides by ``multiple``; empty bins only when no bin has two items."""
    whole = [(-sum(sizes[i] for i in b), b) for b in bins]
    singles = [b for _, b in whole if len(b) < 2]
    heap = [(load, b) for load, b in whole if len(b) > 1]
    heapq.heapify(heap)
    while (len(heap) + len(singles)) % multiple and heap:
        for half in _halves(heapq.heappop(heap)[1], sizes):
            if len(half) > 1:
                heapq.heappush(heap, (-sum(sizes[i] for i in half), half))
            else:
                singles.append(half)
    done = [b for _, b in heap] + singles
    return done + [[] for _ in range(-len(done) % multiple)]


def _halves(items: Bin, sizes: Sequence[int]) -> tuple[Bin, Bin]:
    left: Bin = []
    right: Bin = []
    loads = [0, 0]
    for item in sorted(items, key=lambda i: (-sizes[i], i)):
        side = int(loads[1] < loads[0])
        (left, right)[side].append(item)
        loads[side] += sizes[item]
    if not right:  # sizes of zero
        right.append(left.pop())
    return left, right


def even_out(
    bins: Sequence[Bin], sizes: Sequence[int], costs: Sequence[float], cap: int | None, most_items: int | None
) -> list[Bin]:
    """The same items in as many bins, the costliest first into the cheapest bin with room. Where the greedy way runs
    out of room, or makes the costliest bin costlier, the bins stay as they are."""
    heap = [(0.0, b) for b in range(len(bins))]
    filled: list[Bin] = [[] for _ in bins]
    load = [0] * len(bins)
    for item in sorted((i for b in bins for i in b), key=lambda i: (-costs[i], i)):
        full = []
        while heap:
            cost, b = heapq.heappop(heap)
            if (cap is None or load[b] + sizes[item] <= cap) and (most_items is None or len(filled[b]) < most_items):
                break
            full.append((cost, b))
        else:
            return list(bins)
        filled[b].append(item)
        load[b] += sizes[item]
        for entry in [*full, (cost + costs[item], b)]:
            heapq.heappush(heap, entry)
    worst_before, worst_after = (max(sum(costs[i] for i in b) for b in each) for each in (bins, filled))
    empty_before, empty_after = (sum(not b for b in each) for each in (bins, filled))
    return filled if worst_after <= worst_before and empty_after <= empty_before else list(bins)


def deal_in_order(bins: Sequence[Bin], ranks: int) -> list[list[Bin]]:
    """Round-robin in the order of their first items, empty bins last."""
    ordered = sorted((sorted(b) for b in bins), key=lambda b: (not b, b))
    return [ordered[rank::ranks] for rank in range(ranks)]


def deal_by_cost(bins: Sequence[Bin], costs: Sequence[float], ranks: int) -> list[list[Bin]]:
    """Equal numbers of bins to every rank and costs as even as the greedy way gets: the costliest bin to the rank with
    the least so far. Each rank's bins descend in cost, so bins that run at the same time cost alike."""
    each = len(bins) // ranks
    priced = sorted(((sum(costs[i] for i in b), sorted(b)) for b in bins), key=lambda p: (-p[0], not p[1], p[1]))
    dealt: list[list[Bin]] = [[] for _ in range(ranks)]
    heap = [(0.0, rank) for rank in range(ranks)]
    for cost, b in priced:
        load, rank = heapq.heappop(heap)
        dealt[rank].append(b)
        if len(dealt[rank]) < each:
            heapq.heappush(heap, (load + cost, rank))
    return dealt
