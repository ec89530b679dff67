"""Which samples train in which optimizer step, on which data-parallel rank, in which micro-batch.

Pure and deterministic: every rank holds the whole batch, computes the same plan and picks its own row of it. The model:
samples form rollouts (siblings of one try), rollouts form groups (tries at one prompt). An optimizer step takes a fixed
number of rollouts and keeps siblings together; within a step samples are packed freely, because token weights are
counted over the step and do not care. Every rank gets the same number of micro-batches, or collectives would hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vime_core.api import DataError
from vime_core.batch.bins import Bin, deal_by_cost, deal_in_order, even_out, pack_by_tokens, split_until
from vime_core.batch.step_batch import StepBatch

Balance = Literal["order", "cost"]


@dataclass(frozen=True)
class BatchPlan:
    """One optimizer step.

    Attributes:
        samples: indices of its samples in the batch, ascending.
        micro_batches: ``micro_batches[rank][k]`` lists the samples of a data-parallel rank's k-th micro-batch. An empty
            list is one that has nothing to train and still must run (it occurs only with fewer samples than ranks).
    """

    samples: list[int]
    micro_batches: list[list[Bin]]

    @property
    def micro_batches_per_rank(self) -> int:
        return len(self.micro_batches[0])


@dataclass(frozen=True)
class Packing:
    """How samples become micro-batches.

    Attributes:
        dp_size: data-parallel ranks.
        max_tokens: tokens of a micro-batch over all its context-parallel ranks (max_tokens_per_gpu times the context
            parallel size); None packs by number of samples instead.
        micro_batch_size: samples of a micro-batch; not used with ``max_tokens``.
        balance: "order" deals in sample order, "cost" evens out the estimated FLOPs; neither exceeds a cap.
        multiple_of: micro-batches of a rank divide by this (an interleaved pipeline's group).
        length_multiple: a sample occupies its length rounded up to this (2 * context parallel size, say).
        attention_knee: length in tokens at which attention costs as much as the matrix products: about 12 hidden
            sizes in a standard block with causal attention (24 h^2 against 2 h L FLOPs a token).
    """

    dp_size: int = 1
    max_tokens: int | None = None
    micro_batch_size: int = 1
    balance: Balance = "order"
    multiple_of: int = 1
    length_multiple: int = 1
    attention_knee: float = 12 * 1024

    def sizes(self, batch: StepBatch) -> list[int]:
        """[N] tokens that each sample occupies."""
        return [-(-int(n) // self.length_multiple) * self.length_multiple for n in batch.total_lengths]

    def cost(self, tokens: int) -> float:
        """Estimated work of a sample, in tokens of a short one."""
        return tokens * (1 + tokens / self.attention_knee)


def plan_steps(batch: StepBatch, packing: Packing, global_batch_size: int) -> list[BatchPlan]:
    """The optimizer steps of a batch, each sample in exactly one micro-batch.

    Args:
        global_batch_size: rollouts of an optimizer step.

    Raises:
        DataError: the number of rollouts does not divide by ``global_batch_size``, a rollout spans two groups, or a
            sample is longer than ``max_tokens``.
    """
    groups = _groups(batch)
    rollouts = sum(len(group) for group in groups)
    if not rollouts or rollouts % global_batch_size:
        raise DataError(
            f"a batch of {rollouts} rollouts cannot be divided into optimizer steps of {global_batch_size} rollouts; "
            "make global_batch_size a divisor of the rollouts of a step"
        )
    steps = [sorted(i for rollout in step for i in rollout) for step in _divide(groups, global_batch_size)]
    return [BatchPlan(samples, _micro_batches(batch, samples, packing)) for samples in steps]


def plan_forward(batch: StepBatch, packing: Packing) -> list[list[Bin]]:
    """``[rank][k]`` lists of samples for a pass without gradient over the whole batch, packed as in training.

    Raises:
        DataError: no samples, or a sample is longer than ``max_tokens``.
    """
    if not len(batch):
        raise DataError("a batch without samples: nothing to run")
    return _micro_batches(batch, range(len(batch)), packing)


def forward_of(steps: Sequence[BatchPlan]) -> list[list[Bin]]:
    """The micro-batches of all steps, rank by rank: a forward pass with the very packing of training, so that the ratio
    is 1 to the bit at the first step."""
    return [[b for step in steps for b in step.micro_batches[rank]] for rank in range(len(steps[0].micro_batches))]


# micro-batches of one step ---------------------------------------------------------------------------------------
def _micro_batches(batch: StepBatch, samples: Sequence[int], packing: Packing) -> list[list[Bin]]:
    sizes = packing.sizes(batch)
    costs = [packing.cost(n) for n in sizes]
    by_cost = packing.balance == "cost"
    if packing.max_tokens is not None:
        _check_cap(batch, samples, sizes, packing.max_tokens)
        chosen = list(samples)
        bins = [[chosen[p] for p in b] for b in pack_by_tokens([sizes[i] for i in chosen], packing.max_tokens)]
    else:
        size = packing.micro_batch_size
        order = sorted(samples, key=lambda i: (-sizes[i], i)) if by_cost else list(samples)
        bins = [order[at : at + size] for at in range(0, len(order), size)]
    bins = split_until(bins, sizes, packing.dp_size * packing.multiple_of)
    if not by_cost:
        return deal_in_order(bins, packing.dp_size)
    most = None if packing.max_tokens is not None else packing.micro_batch_size
    return deal_by_cost(even_out(bins, sizes, costs, packing.max_tokens, most), costs, packing.dp_size)


def _check_cap(batch: StepBatch, samples: Sequence[int], sizes: Sequence[int], cap: int) -> None:
    over = [i for i in samples if sizes[i] > cap]
    if over:
        i = max(over, key=lambda i: sizes[i])
        raise DataError(
            f"{len(over)} of {len(samples)} samples do not fit into a micro-batch of {cap} tokens; the longest has "
            f"{sizes[i]} (group {batch.group[i]}, rollout {batch.rollout[i]}, sample {i} of the batch); raise "
            "max_tokens_per_gpu or lower rollout_max_response_len"
        )


# rollouts into steps ---------------------------------------------------------------------------------------------
Rollout = list[int]


def _groups(batch: StepBatch) -> list[list[Rollout]]:
    """Groups in order of appearance, each a list of rollouts, each a list of samples."""
    groups: dict[int, dict[int, Rollout]] = {}
    home: dict[int, int] = {}
    for i, (group, rollout) in enumerate(zip(batch.group.tolist(), batch.rollout.tolist())):
        if home.setdefault(rollout, group) != group:
            raise DataError(f"rollout {rollout} has samples in group {home[rollout]} and in group {group}")
        groups.setdefault(group, {}).setdefault(rollout, []).append(i)
    return [list(rollouts.values()) for rollouts in groups.values()]


def _divide(groups: list[list[Rollout]], size: int) -> list[list[Rollout]]:
    """Steps of ``size`` rollouts. In order of appearance where that splits no group (the usual case), else whichever of
    that and largest-first splits fewer. Both look at one step at a time: the fewest splits are not promised."""
    steps, splits = _fill(groups, size)
    if splits:
        others, fewer = _fill(sorted(groups, key=len, reverse=True), size)
        steps = others if fewer < splits else steps
    return steps


def _fill(groups: list[list[Rollout]], size: int) -> tuple[list[list[Rollout]], int]:
    left, steps, splits = list(groups), [], 0
    while left:
        picked = set(_subset([len(g) for g in left], size))
        step = [rollout for at in sorted(picked) for rollout in left[at]]
        left = [g for at, g in enumerate(left) if at not in picked]
        missing = size - len(step)
        if missing:  # no set of whole groups fills the step: the next group gives what is missing
            splits += 1
            step, left[0] = step + left[0][:missing], left[0][missing:]
        steps.append(step)
    return steps, splits


def _subset(sizes: Sequence[int], target: int) -> list[int]:
    """Positions whose sizes come closest to ``target`` from below, the earliest such set. Sets of reachable sums are
    the bits of one integer."""
    within = (1 << (target + 1)) - 1
    reach = [1]
    for size in reversed(sizes):
        reach.append((reach[-1] | reach[-1] << size) & within)
    reach.reverse()
    goal, picked = reach[0].bit_length() - 1, []
    for at, size in enumerate(sizes):
        if size <= goal and reach[at + 1] >> (goal - size) & 1:
            picked.append(at)
            goal -= size
    return picked
