"""Advantages, returns and the critic's loss against numbers that several public implementations agree on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from vime_testing.toy_step import random_case, small_batch

from vime_core.algorithms.baselines import MaxRl, Opo, Rloo
from vime_core.algorithms.common import whiten
from vime_core.algorithms.critic_loss import value_loss
from vime_core.algorithms.grpo import Dapo, DrGrpo, Grpo
from vime_core.algorithms.gspo import Gspo
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.opd import Opd
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.ppo import Ppo
from vime_core.algorithms.prepare import prepare_step
from vime_core.algorithms.reinforce import Reinforce, ReinforcePlusPlus, ReinforcePlusPlusBaseline
from vime_core.algorithms.returns import Discount, at_last, discounted, following, gae, token_rewards

Golden = dict[str, Any]


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def batch_of(golden: Golden, *, under: float = math.nan) -> Any:
    """All columns; ``under`` stands at masked tokens."""
    inputs = golden["inputs"]
    mask = flat(inputs["masks"]).bool()
    columns = {
        name: torch.where(mask, flat(inputs[name]), under).float()
        for name in ("old_logp", "ref_logp", "teacher_logp", "values")
    }
    n = len(inputs["masks"])
    batch = small_batch(inputs["masks"], reward=inputs["rewards"], group=inputs["groups"], rollout=list(range(n)))
    return batch.with_old_logp(columns.pop("old_logp")).with_columns(**columns)


def advantages(algorithm: Any, golden: Golden, **given: Any) -> Any:
    return algorithm.advantages(batch_of(golden), merge_options(algorithm, given))


def close(got: torch.Tensor, want: list[list[float]] | torch.Tensor, tolerance: float = 1e-6) -> None:
    right = want if isinstance(want, torch.Tensor) else flat(want)
    torch.testing.assert_close(got.double(), right.double(), atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("algorithm", "given", "name"),
    [
        (Grpo(), {}, "grpo_std"),
        (Grpo(), {"disable_grpo_std_normalization": True}, "grpo_nostd"),
        (Dapo(), {}, "grpo_std"),
        (Gspo(), {}, "grpo_std"),
        (DrGrpo(), {}, "grpo_nostd"),
        (Rloo(), {}, "rloo"),
        (Opo(), {}, "opo"),
        (MaxRl(), {}, "maxrl"),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_group_advantages(golden_algorithms: Golden, algorithm: Any, given: Any, name: str) -> None:
    """A group of one gets 0 from all of them; the table lets OPO's and MaxRL's keep its reward."""
    want = torch.tensor(golden_algorithms["group"][name])
    want[5] = 0.0
    close(advantages(algorithm, golden_algorithms, **given), want[batch_of(golden_algorithms).seg()])


def test_rewards_of_tokens(golden_algorithms: Golden) -> None:
    got = token_rewards(batch_of(golden_algorithms), {"kl_coef": 0.05, "kl_estimator": "k1"})
    close(got, golden_algorithms["gae"]["token_rewards"])


@pytest.mark.parametrize("under", [math.nan, math.inf, 100.0])
@pytest.mark.parametrize(
    ("name", "gamma", "lambd"), [("g0.99_l0.95", 0.99, 0.95), ("g1_l1", 1, 1), ("g1_l0", 1, 0)], ids=lambda x: str(x)
)
def test_ppo(golden_algorithms: Golden, name: str, gamma: float, lambd: float, under: float) -> None:
    options = merge_options(Ppo(), {"kl_coef": 0.05, "gamma": gamma, "lambd": lambd})
    got = Ppo().advantages(batch_of(golden_algorithms, under=under), options)
    close(got.advantage, golden_algorithms["gae"][name]["adv"])
    close(got.returns, golden_algorithms["gae"][name]["ret"])


@pytest.mark.parametrize("name", ["g0.99_l0.95", "g1_l1", "g1_l0"])
def test_ppo_whitened(golden_algorithms: Golden, name: str) -> None:
    want = golden_algorithms["gae"][name]
    close(whiten(flat(want["adv"]), batch_of(golden_algorithms).t("mask")), want["adv_whitened"])


@pytest.mark.parametrize("gamma", ["1.0", "0.9"])
def test_reinforce_plus_plus(golden_algorithms: Golden, gamma: str) -> None:
    want, batch = golden_algorithms["rpp"][gamma], batch_of(golden_algorithms)
    rewards = token_rewards(batch, {"kl_coef": 0.05, "kl_estimator": "k1"})
    close(discounted(rewards, batch.t("mask"), batch.seg(), float(gamma)), want["returns"])
    got = advantages(ReinforcePlusPlus(), golden_algorithms, kl_coef=0.05, gamma=float(gamma))
    close(got, want["adv"])


def test_reinforce_plus_plus_baseline(golden_algorithms: Golden) -> None:
    want = golden_algorithms["rpp_baseline"]
    close(advantages(ReinforcePlusPlusBaseline(), golden_algorithms, kl_coef=0.05), want["adv"])


def test_distillation(golden_algorithms: Golden) -> None:
    mask = batch_of(golden_algorithms).t("mask")
    prepared = prepare_step(Objective(Opd(), merge_options(Opd(), {}), "token_mean"), batch_of(golden_algorithms))
    close(-prepared.advantage, torch.where(mask, flat(golden_algorithms["opd"]["reverse_kl"]), 0.0))
    assert float(-prepared.advantage[mask].mean()) == pytest.approx(golden_algorithms["opd"]["mean_token"], abs=1e-6)


def test_value_loss(golden_algorithms: Golden) -> None:
    inputs, want = golden_algorithms["inputs"], golden_algorithms["value"]
    values, old, returns = (flat(inputs[name]) for name in ("new_values", "values", "returns"))
    got = value_loss(values, old, returns, 0.2)
    close(got.loss, want["loss_no_half"])
    mask = flat(inputs["masks"]).bool()
    assert float(got.clipped[mask].double().mean()) == want["clipfrac_moved_past_clip"]
    for aggregation, factor, name in (
        ("sample_mean", 1.0, "sample_mean_no_half"),
        ("token_mean", 0.5, "token_mean_half"),
    ):
        weight = prepare_step(
            Objective(Grpo(), merge_options(Grpo(), {}), aggregation), batch_of(golden_algorithms)
        ).weight(range(6))
        assert float((weight * got.loss).sum()) * factor == pytest.approx(want[name], abs=1e-6)


def test_value_loss_has_the_gradient_of_its_value(golden_algorithms: Golden) -> None:
    inputs = golden_algorithms["inputs"]
    values = flat(inputs["new_values"]).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, flat(inputs["values"]), flat(inputs["returns"]), 0.2).loss, values
    )


# recursions against the plain loop ------------------------------------------------------------------------------
def by_hand(reward: list[float], values: list[float], gamma: float, lambd: float) -> tuple[list[float], list[float]]:
    advantage, after, ahead = [], 0.0, 0.0
    for r, v in zip(reversed(reward), reversed(values)):
        ahead = r + gamma * after - v + gamma * lambd * ahead
        advantage.append(ahead)
        after = v
    advantage.reverse()
    return advantage, [a + v for a, v in zip(advantage, values)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("gamma", "lambd"), [(0.9, 0.7), (1.0, 1.0), (0.0, 0.5), (0.95, 0.0)])
def test_gae_is_the_loop_over_trainable_tokens(seed: int, gamma: float, lambd: float) -> None:
    batch = random_case(seed).batch
    mask, seg = batch.t("mask"), batch.seg()
    generator = torch.Generator().manual_seed(seed)
    reward, values = (torch.randn(len(mask), generator=generator, dtype=torch.float64) for _ in range(2))
    advantage, returns = gae(reward, values, mask, seg, Discount(gamma, lambd))
    for i in range(len(batch)):
        own = mask & (seg == i)
        want = by_hand(reward[own].tolist(), values[own].tolist(), gamma, lambd)
        assert advantage[own].tolist() == pytest.approx(want[0], abs=1e-12)
        assert returns[own].tolist() == pytest.approx(want[1], abs=1e-12)
    assert not advantage[~mask].any()
    assert not returns[~mask].any()


@pytest.mark.parametrize("masks", [[], [[]], [[0, 0], []], [[1]], [[], [0], [1, 1], []]])
def test_nothing_to_walk(masks: list[list[int]]) -> None:
    batch = small_batch(masks, reward=[2.0] * len(masks))
    mask, seg = batch.t("mask"), batch.seg()
    ones = torch.ones(len(mask), dtype=torch.float64)
    assert float(at_last(batch.t("reward"), mask, seg).sum()) == 2.0 * sum(1 in row for row in masks)
    assert float(following(ones, mask, seg).sum()) == sum(max(sum(row) - 1, 0) for row in masks)
    assert discounted(ones, mask, seg, 0.5).shape == mask.shape


def test_a_sample_without_reward_is_in_no_return_and_no_statistic() -> None:
    masks = [[1, 1], [1, 1], [1]]
    whole = small_batch(masks, reward=[1.0, 3.0, math.nan], group=[0, 0, 1])
    part = small_batch(masks[:2], reward=[1.0, 3.0], group=[0, 0])
    for algorithm in (ReinforcePlusPlus(), ReinforcePlusPlusBaseline(), Reinforce()):
        options = merge_options(algorithm, {})
        got = algorithm.advantages(whole, options)
        assert got.isfinite().all()
        assert got[:4].tolist() == algorithm.advantages(part, options).tolist()
        assert float(got[4]) == 0.0


def test_equal_rewards_whiten_to_exactly_zero() -> None:
    tenth = float(torch.tensor(0.1))
    batch = small_batch([[1, 1, 1]] * 7, reward=[tenth] * 7)
    for algorithm in (ReinforcePlusPlus(), ReinforcePlusPlusBaseline()):
        assert not algorithm.advantages(batch, merge_options(algorithm, {})).any()


def test_a_group_without_success_has_nothing_to_weigh() -> None:
    """Dividing by a mean that is not above 0 would turn the sign of the advantage."""
    batch = small_batch([[1]] * 4, reward=[-1.0, -3.0, 1.0, -1.0], group=[0, 0, 1, 1])
    assert MaxRl().advantages(batch, merge_options(MaxRl(), {})).tolist() == [0.0] * 4
