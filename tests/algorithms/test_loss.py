"""One micro-batch: what is under the mask, what is empty, what a broken algorithm gets to hear."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.loss import MicroBatchSlice, MicroView, TokenColumns, micro_loss
from vime_core.algorithms.loss_config import LossConfig
from vime_core.algorithms.metrics import add_pairs, finish, from_vector, to_vector
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import prepare_step
from vime_core.algorithms.sft import Sft
from vime_core.api.errors import TrainerError

OPTIONS = merge_options(Grpo(), {"eps_clip_c": 3.0})
NAN = math.nan


def view_of(mask: list[int], logp: torch.Tensor, old: list[float] | None = None) -> MicroView:
    every = torch.arange(len(mask))
    held = MicroBatchSlice(
        index=every,
        seg=torch.zeros_like(every),
        counts=torch.tensor([sum(mask)]),
        mask=torch.tensor(mask).bool(),
        advantage=torch.zeros(len(mask)),
        weight=torch.zeros(len(mask)),
        correction=None,
        old_logp=None if old is None else torch.tensor(old),
        extra={},
        extra_per_sample={},
    )
    return held.view(logp)


def run(mask: list[int], logp: list[float], advantage: list[float], old: list[float] | None = None) -> Any:
    leaf = torch.tensor(logp, requires_grad=True)
    loss, pairs = micro_loss(
        Objective(Grpo(), OPTIONS),
        view_of(mask, leaf, old),
        TokenColumns(torch.tensor(advantage), torch.full((len(mask),), 0.5)),
    )
    loss.backward()
    return loss.item(), leaf.grad, finish(pairs)


def test_nan_under_the_mask_reaches_neither_loss_nor_gradient() -> None:
    loss, grad, metrics = run([1, 0, 1], [-1.0, NAN, -2.0], [1.0, NAN, -1.0], [-1.0, NAN, -2.0])
    assert loss == 0.0
    assert grad.tolist() == [-0.5, 0.0, 0.5]
    assert all(math.isfinite(x) for x in metrics.values())


def test_nan_at_a_trainable_token_is_not_hidden() -> None:
    assert math.isnan(run([1, 1], [NAN, -1.0], [1.0, 1.0], [-1.0, -1.0])[0])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("gap", [100.0, -100.0, 1e30, math.inf, -math.inf])
def test_extreme_ratios_stay_finite(gap: float, advantage: float) -> None:
    loss, grad, metrics = run([1], [-1.0], [advantage], [-1.0 - gap])
    assert math.isfinite(loss)
    assert torch.isfinite(grad).all()
    assert metrics["ois"] == pytest.approx(math.exp(math.copysign(20, gap)))


@pytest.mark.parametrize("algorithm", [Grpo(), Sft()])
@pytest.mark.parametrize("mask", [[], [0, 0]])
def test_nothing_to_train_is_a_connected_zero(algorithm: Any, mask: list[int]) -> None:
    table = torch.randn(len(mask), 3, requires_grad=True)
    logp = table.log_softmax(-1)[:, 0]
    options = merge_options(algorithm, {})
    loss, pairs = micro_loss(
        Objective(algorithm, options), view_of(mask, logp), TokenColumns(torch.zeros(len(mask)), torch.ones(len(mask)))
    )
    loss.backward()
    assert loss.item() == 0.0
    assert table.grad is not None
    assert not table.grad.any()
    assert finish(pairs) == {"loss": 0.0, "pg_loss": 0.0}


def test_a_surrogate_that_ignores_the_policy_is_still_connected() -> None:
    class Constant(Sft):
        def surrogate(self, view: Any, advantage: Any, options: Any) -> Any:
            return torch.ones_like(advantage), {}

    leaf = torch.tensor([-math.inf, -1.0], requires_grad=True)
    loss, _ = micro_loss(Objective(Constant(), {}), view_of([1, 1], leaf), TokenColumns(torch.ones(2), torch.ones(2)))
    loss.backward()
    assert (loss.item(), leaf.grad.tolist()) == (2.0, [0.0, 0.0])  # type: ignore[union-attr]


def test_the_current_log_probs_stand_in_for_the_old_ones() -> None:
    loss, grad, metrics = run([1, 1], [-0.3, -7.0], [2.0, -1.0])
    assert (metrics["ppo_kl"], metrics["ois"]) == (0.0, 1.0)
    assert loss == -0.5
    assert grad.tolist() == [-1.0, 0.5]


def test_correction_scales_the_surrogate_and_not_the_entropy() -> None:
    leaf = torch.tensor([-1.0, -1.0])
    objective = Objective(Grpo(), OPTIONS, loss_config=LossConfig(entropy_coef=0.1))
    columns = TokenColumns(
        torch.ones(2), torch.tensor([0.5, 0.25]), torch.tensor([2.0, 0.0]), entropy=torch.tensor([1.0, 3.0])
    )
    loss, pairs = micro_loss(objective, view_of([1, 1], leaf), columns)
    values = finish(pairs)
    assert values["pg_loss"] == pytest.approx(-1.0)
    assert values["entropy_loss"] == pytest.approx(0.5 + 0.75)
    assert values["entropy"] == pytest.approx(2.0)
    assert values["loss"] == loss.item() == pytest.approx(-1.0 - 0.125)


@pytest.mark.parametrize("c", [1.5, 2.0])
def test_the_dual_clip_bound_reaches_the_loss(c: float) -> None:
    options = merge_options(Grpo(), {"eps_clip_c": c})
    view = view_of([1], torch.tensor([-1.0]), [-3.0])
    loss, _ = micro_loss(Objective(Grpo(), options), view, TokenColumns(torch.tensor([-1.0]), torch.ones(1)))
    assert loss.item() == pytest.approx(c)


def test_entropy_is_asked_for_and_missing() -> None:
    with pytest.raises(TrainerError, match=r"entropy_coef is 0\.1, but no entropy"):
        micro_loss(
            Objective(Sft(), {}, loss_config=LossConfig(entropy_coef=0.1)),
            view_of([1], torch.zeros(1)),
            TokenColumns(torch.ones(1), torch.ones(1)),
        )


@pytest.mark.parametrize("what", ["surrogate", "surrogate (metric 'metric')"])
def test_a_wrong_shape_names_the_algorithm(what: str) -> None:
    class Broken(Sft):
        name = "broken"

        def surrogate(self, view: Any, advantage: Any, options: Any) -> Any:
            per_sample = view.seq_sum(view.logp)
            return (per_sample, {}) if what == "surrogate" else (view.logp, {"metric": per_sample})

    with pytest.raises(TrainerError, match=rf"algorithm 'broken': {re.escape(what)} has shape \(1,\), expected \(2,\)"):
        micro_loss(Objective(Broken(), {}), view_of([1, 1], torch.zeros(2)), TokenColumns(torch.ones(2), torch.ones(2)))


def test_token_columns_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'logp': 3.* for 2 tokens"):
        view_of([1, 1], torch.zeros(3))


def test_extra_columns_come_with_the_share() -> None:
    class Needy(Sft):
        needs = frozenset({"bonus", "style", "rollout_logp"})

    extra = {"bonus": ("response", [1.0, NAN, 3.0]), "style": ("sample", [7, 8])}
    batch = small_batch([[1, 0], [1]], extra=extra, rollout_logp=[-1.0, NAN, -3.0])
    prepared = prepare_step(Objective(Needy(), {}, "token_mean"), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight([0, 1]), [1, 0])
    view = share.view(torch.zeros(3))
    assert view.extra["bonus"].tolist() == [3.0, 1.0, 0.0]
    assert view.extra["style"].tolist() == [8, 7]
    assert view.extra["rollout_logp"].tolist() == [-3.0, -1.0, 0.0]
    assert share.to("cpu").seg.tolist() == [0, 1, 1]


def test_pairs_survive_the_all_reduce_vector() -> None:
    parts = []
    for mask in ([1, 1, 0], [0], [1]):
        view = view_of(mask, torch.full((len(mask),), -1.0), [-1.5] * len(mask))
        parts.append(
            micro_loss(Objective(Grpo(), OPTIONS), view, TokenColumns(torch.ones(len(mask)), torch.ones(len(mask))))[1]
        )
    reduced = from_vector(torch.stack([to_vector(p) for p in parts]).sum(0), parts[0])
    assert finish(reduced) == pytest.approx(finish(add_pairs(parts)))
    assert finish(reduced)["ppo_kl"] == pytest.approx(-0.5)
