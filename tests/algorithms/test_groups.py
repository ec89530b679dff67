"""Who is in a group's statistics, and when a group is constant: one rule for every estimator."""

from __future__ import annotations

import math

import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.algorithms.baselines import MaxRl, Opo, Rloo
from vime_core.algorithms.common import whiten
from vime_core.algorithms.grpo import Dapo, DrGrpo, Grpo
from vime_core.algorithms.loss_config import LossConfig
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import overlong_penalty, prepare_step
from vime_core.algorithms.reinforce import ReinforcePlusPlusBaseline
from vime_core.api.algorithm import Algorithm

ESTIMATORS = [Grpo, DrGrpo, Dapo, Rloo, Opo, MaxRl, ReinforcePlusPlusBaseline]


def advantages(kind: type[Algorithm], masks: list[list[int]], loss_config: LossConfig | None = None, **columns) -> list:
    algorithm = kind()
    objective = Objective(algorithm, merge_options(algorithm, {}), loss_config=loss_config or LossConfig())
    batch = small_batch(masks, **columns).with_old_logp(torch.zeros(sum(len(mask) for mask in masks)))
    return prepare_step(objective, batch).advantage.tolist()


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize(
    "rewards",
    [[3e9] * 4, [1e-9] * 4, [-2.5] * 4, [0.1 * 8, sum([0.1] * 8)] * 2, [float(torch.tensor(0.1)), 0.1] * 2, [0.0] * 4],
)
def test_equal_rewards_of_any_size_teach_exactly_nothing(kind: type[Algorithm], rewards: list[float]) -> None:
    assert advantages(kind, [[1]] * 4, reward=rewards) == [0.0] * 4


@pytest.mark.parametrize("scale", [1e-9, 1.0, 3e9])
def test_rewards_that_differ_do_so_at_any_size(scale: float) -> None:
    found = advantages(DrGrpo, [[1]] * 2, reward=[scale, 2 * scale])
    assert found == pytest.approx([-scale / 2, scale / 2])


def test_whitening_knows_no_absolute_size_either() -> None:
    mask = torch.ones(3, dtype=torch.bool)
    assert whiten(torch.tensor([3e9, 3e9, 3e9]), mask).tolist() == [0.0] * 3
    assert whiten(torch.tensor([1e-9, 2e-9, 3e-9]), mask).tolist() == pytest.approx([-1e-5, 0, 1e-5])


def test_the_baseline_of_rloo_is_the_mean_of_the_other_rollouts() -> None:
    """Rollout 0 has two samples with rewards 1 and 3, rollouts 1 and 2 one each."""
    found = advantages(Rloo, [[1]] * 4, reward=[1.0, 3.0, 5.0, 9.0], rollout=[0, 0, 1, 2])
    assert found == pytest.approx([1 - 7, 3 - 7, 5 - (2 + 9) / 2, 9 - (2 + 5) / 2])


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("absent", ["unscored", "empty", "masked"])
def test_what_is_not_there_is_in_no_statistic(kind: type[Algorithm], absent: str) -> None:
    """The group of three rollouts, with and without a fourth that is not there."""
    masks = {"unscored": [1], "empty": [], "masked": [0]}
    reward = math.nan if absent == "unscored" else 100.0
    alone = advantages(kind, [[1], [1, 1], [1]], reward=[1.0, 2.0, 4.0])
    beside = advantages(kind, [[1], [1, 1], [1], masks[absent]], reward=[1.0, 2.0, 4.0, reward])
    assert beside[: len(alone)] == pytest.approx(alone)
    assert any(alone)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_one_that_remains_gets_nothing_and_is_counted(kind: type[Algorithm]) -> None:
    algorithm = kind()
    batch = small_batch([[1], [0], []], reward=[1.0, 2.0, 3.0]).with_old_logp(torch.zeros(2))
    prepared = prepare_step(Objective(algorithm, merge_options(algorithm, {})), batch)
    assert prepared.advantage.tolist() == [0.0, 0.0]
    assert prepared.metrics["groups_of_one"] == 1.0


def test_truncated_answers_that_are_not_trained_on_keep_their_place_in_the_baseline() -> None:
    found = advantages(
        DrGrpo,
        [[1]] * 3,
        LossConfig(mask_truncated_samples=True),
        reward=[1.0, 2.0, 6.0],
        truncated=[0, 0, 1],
    )
    assert found == pytest.approx([-2.0, -1.0, 0.0])


def test_the_overlong_penalty_ends_at_its_factor_and_counts_what_was_sampled() -> None:
    lengths = torch.tensor([4, 6, 8, 20])
    assert overlong_penalty(lengths, 8, 4, 2.0).tolist() == [0.0, -1.0, -2.0, -2.0]
    config = LossConfig(overlong_buffer_len=4, max_response_len=8)
    masks = [[1, 1, 1, 1, 0, 0, 0, 0], [1] * 8]
    version = [*([0] * 4), *([-1] * 4), *([0] * 8)]  # the first one's second half is what a tool said
    found = advantages(DrGrpo, masks, config, reward=[1.0, 1.0], version=version)
    assert found[0] == pytest.approx(0.5)
    assert found[-1] == pytest.approx(-0.5)
