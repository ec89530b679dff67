"""A plan is right when every worker has its slice, each element once, from a rank that has it."""

from __future__ import annotations

import random

import pytest

from benchmarks.p2p_simulator import scatter, simulate
from vime_core.api.errors import ConfigError
from vime_core.weights.p2p_plan import ShardedTensor, TensorSharding, TransferPlan, make_plan


def sharding(generator: random.Random, members: range, axes: int) -> TensorSharding:
    """Some partition of some members, as tensor and data parallelism give it."""
    axis = generator.choice([None, *range(axes)])
    parts = 1 if axis is None else generator.choice([part for part in (1, 2, 4) if part <= len(members)])
    pool = list(members)
    generator.shuffle(pool)
    return TensorSharding(axis, tuple(tuple(sorted(pool[part::parts])) for part in range(parts)))


def weights(seed: int, trainers: int, workers: int) -> list[ShardedTensor]:
    generator = random.Random(seed)
    found = []
    for number in range(generator.randint(1, 6)):
        shape = tuple(4 * generator.randint(1, 3) for _ in range(generator.randint(1, 3)))
        sides = (sharding(generator, range(count), len(shape)) for count in (trainers, workers))
        found.append(ShardedTensor(f"w{number}", shape, generator.choice([1, 2, 4]), *sides))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_every_worker_has_its_slice_and_nothing_else(seed: int) -> None:
    generator = random.Random(1000 + seed)
    given = weights(seed, generator.randint(1, 8), generator.randint(1, 8))
    plan = make_plan(given)
    assert simulate(plan, scatter(given, "trainer")) == scatter(given, "engine")


@pytest.mark.parametrize("seed", range(20))
def test_bytes_add_up_and_rounds_have_no_clash(seed: int) -> None:
    given = weights(seed, 8, 4)
    plan = make_plan(given)
    wanted: dict[int, int] = {}
    for weight in given:
        whole = weight.itemsize
        for extent in weight.shape:
            whole *= extent
        for holders in weight.engine.holders:
            for member in holders:
                wanted[member] = wanted.get(member, 0) + whole // weight.engine.parts
    assert plan.received() == wanted
    assert sum(plan.sent().values()) == sum(wanted.values())
    rounds = plan.rounds()
    assert sorted(t.name for r in rounds for t in r) == sorted(t.name for t in plan.transfers)
    for transfers in rounds:
        assert len({t.sender for t in transfers}) == len({t.receiver for t in transfers}) == len(transfers)


def test_the_plan_is_the_same_on_every_machine() -> None:
    given = weights(5, 8, 8)
    assert make_plan(given) == make_plan(list(reversed(given)))


def even(parts: int, replicas: int) -> TensorSharding:
    return TensorSharding(0, tuple(tuple(part + parts * copy for copy in range(replicas)) for part in range(parts)))


def test_replicas_share_the_work() -> None:
    """Four data-parallel copies of two slices, eight workers with two slices: nobody sends more than another."""
    given = [ShardedTensor(f"layer{i}", (64, 8), 2, even(2, 4), even(2, 4)) for i in range(12)]
    sent = make_plan(given).sent()
    assert len(sent) == 8
    assert max(sent.values()) == min(sent.values())


def test_a_sender_on_the_same_machine_is_preferred() -> None:
    given = [ShardedTensor("w", (8, 8), 2, TensorSharding(None, ((0, 1),)), TensorSharding(None, ((0, 1),)))]
    plan = make_plan(given, {0: "a", 1: "b"}, {0: "b", 1: "a"})
    assert {(t.sender, t.receiver) for t in plan.transfers} == {(1, 0), (0, 1)}


def test_equal_layouts_need_one_piece_a_slice() -> None:
    given = [ShardedTensor("w", (16, 4), 2, even(4, 1), even(4, 1))]
    assert [(t.sender, t.receiver) for t in make_plan(given).transfers] == [(0, 0), (1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("side", "says"),
    [
        (TensorSharding(0, ((0,), (1,), (2,))), "8 along axis 0 cannot be partitioned in 3"),
        (TensorSharding(None, ((0,), (1,))), "2 slices but no axis"),
    ],
)
def test_a_tensor_that_cannot_be_partitioned_is_named(side: TensorSharding, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_plan([ShardedTensor("model.w", (8, 4), 2, side, TensorSharding(None, ((0,),)))])


def test_the_simulator_sees_wrong_plans() -> None:
    given = [ShardedTensor("w", (4,), 2, even(2, 1), TensorSharding(None, ((0,),)))]
    plan, sources = make_plan(given), scatter(given, "trainer")
    first, second = plan.transfers
    with pytest.raises(ValueError, match="is sent twice"):
        simulate(TransferPlan((first, second, second)), sources)
    assert simulate(TransferPlan((first,)), sources) != scatter(given, "engine")
