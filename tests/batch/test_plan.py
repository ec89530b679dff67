"""Plans over many random and some spiteful batches: each sample once, caps kept, ranks alike, nothing dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from vime_testing.toy_step import small_batch

from vime_core.api.errors import DataError
from vime_core.batch.bins import even_out, pack_by_tokens, split_until
from vime_core.batch.plan import Balance, BatchPlan, Packing, forward_of, plan_forward, plan_steps
from vime_core.batch.step_batch import StepBatch


def batch_of(lengths: list[int], groups: list[int] | None = None, rollouts: list[int] | None = None) -> StepBatch:
    """Lengths count one prompt token."""
    n = len(lengths)
    return small_batch(
        [[1] * (k - 1) for k in lengths],
        group=[0] * n if groups is None else groups,
        rollout=list(range(n)) if rollouts is None else rollouts,
    )


def random_batch(seed: int) -> tuple[StepBatch, int]:
    """(batch, a number of rollouts a step that divides its rollouts)."""
    rng = np.random.default_rng(seed)
    steps, size = int(rng.integers(1, 4)), int(rng.integers(1, 9))
    left, groups, rollouts, lengths = steps * size, [], [], []
    while left:
        members = min(left, int(rng.integers(1, 6)))
        for _ in range(members):
            fan = int(rng.integers(1, 4))
            groups += [1000 - left] * fan
            rollouts += [left * 7] * fan
            kind = rng.integers(3)
            lengths += [int(x) for x in ([2, 64, 33][kind], *rng.integers(2, 65, fan - 1))]
            left -= 1
    order = rng.permutation(len(lengths))
    columns = [[column[i] for i in order] for column in (lengths, groups, rollouts)]
    return batch_of(*columns), size


def flat(micro_batches: list[list[list[int]]]) -> list[int]:
    return [i for rank in micro_batches for b in rank for i in b]


def check(step: BatchPlan, batch: StepBatch, ranks: int, cap: int | None, most: int, multiple: int = 1) -> None:
    assert sorted(flat(step.micro_batches)) == step.samples
    assert len(step.micro_batches) == ranks
    assert {len(rank) for rank in step.micro_batches} == {step.micro_batches_per_rank}
    assert step.micro_batches_per_rank % multiple == 0
    bins = list(chain(*step.micro_batches))
    for b in bins:
        if cap is not None:
            assert sum(int(batch.total_lengths[i]) for i in b) <= cap
        else:
            assert len(b) <= most
    if any(not b for b in bins):
        assert max(map(len, bins)) <= 1, "an empty micro-batch although another could be split"


@pytest.mark.parametrize("balance", ["order", "cost"])
@pytest.mark.parametrize("seed", range(40))
def test_plans_keep_their_promises(seed: int, balance: Balance) -> None:
    batch, size = random_batch(seed)
    for ranks in (1, 2, 3, 8):
        for cap in (None, 64, 65, 200, 10_000):
            multiple = 1 + seed % 2
            steps = plan_steps(
                batch,
                Packing(
                    dp_size=ranks,
                    max_tokens=cap,
                    micro_batch_size=1 + seed % 4,
                    balance=balance,
                    multiple_of=multiple,
                    attention_knee=40,
                ),
                global_batch_size=size,
            )
            assert sorted(chain(*(s.samples for s in steps))) == list(range(len(batch)))
            for step in steps:
                check(step, batch, ranks, cap, 1 + seed % 4, multiple)
                assert len(set(batch.rollout[step.samples])) == size
            homes = Counter(r for s in steps for r in set(batch.rollout[s.samples].tolist()))
            assert set(homes.values()) == {1}, "siblings of a rollout in different steps"


def test_the_same_batch_gives_the_same_plan() -> None:
    batch, size = random_batch(5)
    again = StepBatch.concat([batch])
    packing = Packing(dp_size=2, max_tokens=100, balance="cost")
    assert plan_steps(batch, packing, size) == plan_steps(again, packing, size)


# steps and groups ------------------------------------------------------------------------------------------------
def steps_of(sizes: list[int], size: int) -> list[list[int]]:
    """Groups of the given sizes, one sample a rollout; the groups in each step."""
    groups = [g for g, n in enumerate(sizes) for _ in range(n)]
    batch = batch_of([3] * len(groups), groups)
    steps = plan_steps(batch, Packing(dp_size=1, max_tokens=None), global_batch_size=size)
    return [sorted(set(batch.group[s.samples].tolist())) for s in steps]


def test_steps_take_groups_in_order() -> None:
    assert steps_of([4, 4, 4, 4], 8) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("sizes", "size", "steps"),
    [
        ([3, 3, 5, 5], 8, [[0, 2], [1, 3]]),  # reorders rather than splits
        ([1, 2, 3, 5, 4, 3], 6, [[0, 3], [1, 4], [2, 5]]),  # in order would split one
        ([4, 4], 2, [[0], [0], [1], [1]]),  # the sizes force it
        ([3, 3, 3, 3], 6, [[0, 1], [2, 3]]),
    ],
)
def test_groups_are_split_only_by_force(sizes: list[int], size: int, steps: list[list[int]]) -> None:
    assert steps_of(sizes, size) == steps


def test_an_unavoidable_split_touches_few_groups() -> None:
    got = steps_of([4, 4, 4], 6)
    assert sum(len(groups) for groups in got) == 4  # one group in two steps, the others in one


def test_trailing_rollouts_are_an_error() -> None:
    with pytest.raises(DataError, match="10 rollouts cannot be divided into optimizer steps of 4"):
        plan_steps(batch_of([3] * 10), Packing(dp_size=1, max_tokens=None), global_batch_size=4)
    with pytest.raises(DataError, match="2 rollouts cannot be divided into optimizer steps of 4"):
        plan_steps(batch_of([3] * 2), Packing(dp_size=1, max_tokens=None), global_batch_size=4)


def test_a_batch_without_samples_is_an_error() -> None:
    empty = batch_of([3]).take([])
    with pytest.raises(DataError, match="0 rollouts"):
        plan_steps(empty, Packing(dp_size=1, max_tokens=None), global_batch_size=1)
    with pytest.raises(DataError, match="without samples"):
        plan_forward(empty, Packing(dp_size=1, max_tokens=None))


def test_a_rollout_in_two_groups_is_an_error() -> None:
    with pytest.raises(DataError, match="rollout 5 has samples in group 0 and in group 1"):
        plan_steps(batch_of([3, 3], [0, 1], [5, 5]), Packing(dp_size=1, max_tokens=None), global_batch_size=1)


# caps ------------------------------------------------------------------------------------------------------------
def test_a_sample_longer_than_the_cap_is_named() -> None:
    batch = batch_of([3, 12, 30], [4, 4, 9], [10, 11, 12])
    message = r"2 of 3 samples do not fit .* 10 tokens; the longest has 30 \(group 9, rollout 12, sample 2"
    with pytest.raises(DataError, match=message):
        plan_steps(batch, Packing(dp_size=1, max_tokens=10), global_batch_size=3)
    with pytest.raises(DataError, match="raise max_tokens_per_gpu"):
        plan_forward(batch, Packing(dp_size=1, max_tokens=10))


def test_a_length_is_counted_as_it_is_padded() -> None:
    batch = batch_of([9, 9, 9])
    packing = Packing(dp_size=1, max_tokens=27)
    assert plan_steps(batch, packing, 3)[0].micro_batches_per_rank == 1
    assert plan_steps(batch, replace(packing, length_multiple=4), 3)[0].micro_batches_per_rank == 2
    with pytest.raises(DataError, match="the longest has 32"):
        plan_steps(batch, replace(packing, length_multiple=32), 3)


def test_balancing_by_cost_never_passes_the_cap() -> None:
    """One long sample, costly by its square, beside many short ones that could fill its bin past the cap."""
    batch = batch_of([1000] + [100] * 40)
    for knee in (10.0, 1e9):
        (step,) = plan_steps(
            batch, Packing(dp_size=2, max_tokens=1000, balance="cost", attention_knee=knee), global_batch_size=41
        )
        check(step, batch, 2, 1000, 1)


def test_balancing_by_cost_evens_out_the_ranks() -> None:
    lengths = [400, 390, 380, 20, 15, 10, 400, 30]
    cost = {}
    choices: tuple[Balance, ...] = ("order", "cost")
    for balance in choices:
        (step,) = plan_steps(
            batch_of(lengths),
            Packing(dp_size=2, max_tokens=400, balance=balance, attention_knee=100),
            global_batch_size=8,
        )
        ranks = [sum(lengths[i] * (1 + lengths[i] / 100) for b in rank for i in b) for rank in step.micro_batches]
        cost[balance] = max(ranks) / (sum(ranks) / 2)
    assert cost["cost"] < 1.1
    assert cost["cost"] <= cost["order"]


def test_fewer_samples_than_ranks_leaves_some_with_an_empty_micro_batch() -> None:
    (step,) = plan_steps(batch_of([5, 6]), Packing(dp_size=4, max_tokens=100), global_batch_size=2)
    assert step.micro_batches == [[[0]], [[1]], [[]], [[]]]


def test_forward_plans() -> None:
    batch, size = random_batch(11)
    assert sorted(flat(plan_forward(batch, Packing(dp_size=3, max_tokens=70)))) == list(range(len(batch)))
    steps = plan_steps(batch, Packing(dp_size=2, max_tokens=70), global_batch_size=size)
    forward = forward_of(steps)
    assert sorted(flat(forward)) == list(range(len(batch)))
    assert forward[1] == [b for step in steps for b in step.micro_batches[1]]


# bins ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(20))
def test_packing_is_within_the_known_bound(seed: int) -> None:
    """Full bins cut into pieces: the fewest possible bins are known, and decreasing fit needs at most 11/9 of them."""
    rng = np.random.default_rng(seed)
    fewest, cap, sizes = 30, 1000, []
    for _ in range(fewest):
        cuts = np.unique(rng.integers(1, cap, rng.integers(0, 5)))
        sizes += np.diff([0, *cuts, cap]).tolist()
    bins = pack_by_tokens(sizes, cap)
    assert sorted(chain(*bins)) == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in b) <= cap for b in bins)
    assert len(bins) <= 11 / 9 * fewest + 6 / 9


def test_splitting_stops_at_single_samples() -> None:
    assert sorted(map(len, split_until([[0, 1, 2]], [9, 1, 1], 2))) == [1, 2]
    assert sorted(map(len, split_until([[0]], [9], 3))) == [0, 0, 1]
    assert sorted(map(len, split_until([[0, 1]], [0, 0], 2))) == [1, 1]


def test_evening_out_keeps_what_it_cannot_improve() -> None:
    loads, costs = [60, 40, 60, 40], [1.0, 50.0, 1.0, 50.0]
    evened = even_out([[0, 1], [2, 3]], loads, costs, 100, None)
    assert sorted(chain(*evened)) == [0, 1, 2, 3]
    assert [sum(loads[i] for i in b) for b in evened] == [100, 100]
    # the costliest first: 1 and 3 part, then 0 and 2 would have to share 120 tokens with either
    tight = [[0, 1], [2]]
    assert even_out(tight, [50, 50, 100], [9.0, 8.0, 1.0], 100, None) == tight


def test_evening_out_moves_cost() -> None:
    evened = even_out([[0, 1], [2, 3]], [1, 1, 1, 1], [9.0, 8.0, 1.0, 2.0], 100, 2)
    assert sorted(map(sorted, evened)) == [[0, 2], [1, 3]]
