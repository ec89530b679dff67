"""Deliberately wrong variants: each must fail the property that is there to catch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from vime_testing import algorithms as kit
from vime_testing.toy_step import Subject, random_case

from vime_core.algorithms.common import bounded_exp, broadcast_to_tokens, whiten
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.loss import TokenColumns, micro_loss
from vime_core.algorithms.loss_config import NO_LOSS_CONFIG
from vime_core.algorithms.metrics import Pair
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.ppo import Ppo
from vime_core.algorithms.reinforce import ReinforcePlusPlus
from vime_core.algorithms.returns import Discount, gae
from vime_core.algorithms.sft import Sft
from vime_core.api.algorithm import Advantages
from vime_core.api.errors import TrainerError

Result = tuple[torch.Tensor, dict[str, Pair]]


def mean_of_means(objective: Objective, view: Any, columns: TokenColumns) -> Result:
    weight = torch.full_like(columns.weight, 1 / max(len(columns.weight), 1))
    return micro_loss(objective, view, replace(columns, weight=weight))


def weighted_by_share(objective: Objective, view: Any, columns: TokenColumns) -> Result:
    samples = torch.full_like(columns.weight, len(view.counts) / max(int(view.mask.sum()), 1))
    return micro_loss(objective, view, replace(columns, weight=samples))


def mean_metrics(*args: Any) -> Result:
    loss, pairs = micro_loss(*args)
    one = torch.ones(())
    return loss, {k: p if p.count is None else Pair(p.sum / p.count.clamp(min=1), one) for k, p in pairs.items()}


def masked_by_product(objective: Objective, view: Any, columns: TokenColumns) -> Result:
    bare = replace(objective, loss_config=NO_LOSS_CONFIG)
    loss, pairs = micro_loss(bare, view, replace(columns, entropy=None))
    assert columns.entropy is not None
    return loss - objective.loss_config.entropy_coef * (columns.weight * columns.entropy * view.mask).sum(), pairs


def counts_the_masked(objective: Objective, view: Any, columns: TokenColumns) -> Result:
    share = view.mask.sum().clamp(min=1) / max(len(view.mask), 1)
    return micro_loss(objective, view, replace(columns, weight=columns.weight * share))


class OwnBaseline(Sft):
    def surrogate(self, view: Any, advantage: Any, options: Any) -> Any:
        return -(view.logp - view.logp.mean()).square(), {}


class LocalSequence(Grpo):
    def surrogate(self, view: Any, advantage: Any, options: Any) -> Any:
        alone = replace(view, reduce=None)
        return -advantage * view.broadcast_to_tokens(bounded_exp(alone.seq_mean(view.logp - view.old_logp))), {}


class OneSidedReduce(Grpo):
    """The sum is right, the gradient of the other ranks' part is lost: an all-reduce with an identity backward."""

    def surrogate(self, view: Any, advantage: Any, options: Any) -> Any:
        gap = view.logp - view.old_logp
        local = replace(view, reduce=None).seq_mean(gap)
        total = view.seq_mean(gap)
        return -advantage * view.broadcast_to_tokens(bounded_exp(local + (total - local).detach())), {}


class GroupsByCount(Grpo):
    def advantages(self, batch: Any, options: Any) -> torch.Tensor:
        reward = batch.t("reward")
        pairs = reward[: len(reward) // 2 * 2].reshape(-1, 2)
        centered = torch.cat([(pairs - pairs.mean(1, keepdim=True)).flatten(), reward[len(reward) // 2 * 2 :] * 0])
        return centered.float()[batch.seg()]


class WritesAdvantage(Grpo):
    def surrogate(self, view: Any, advantage: Any, options: Any) -> Any:
        advantage.clamp_(-5.0, 5.0)
        return super().surrogate(view, advantage, options)


class DetachedRatio(Grpo):
    def surrogate(self, view: Any, advantage: Any, options: Any) -> Any:
        return -advantage * (view.logp - view.old_logp.detach()).exp().detach() + 0 * view.logp, {}


class ValuesOfMaskedTokens(Ppo):
    """Targets that look at values where nothing is trained."""

    def advantages(self, batch: Any, options: Any) -> Advantages:
        values = batch.t("values").nan_to_num(0.0)
        return Advantages(
            *(x.float() for x in gae(values, values, torch.ones_like(batch.t("mask")), batch.seg(), Discount(1.0, 1.0)))
        )


class WhitensAll(ReinforcePlusPlus):
    """Statistics over masked tokens, too."""

    def advantages(self, batch: Any, options: Any) -> torch.Tensor:
        every = torch.ones_like(batch.t("mask"))
        return whiten(broadcast_to_tokens(batch, batch.t("reward")), every)


GRPO = Subject(Grpo(), "token_mean")


@pytest.mark.parametrize(
    ("subject", "check"),
    [
        (replace(GRPO, loss=mean_of_means), kit.check_micro_batches),
        (replace(GRPO, loss=weighted_by_share), kit.check_micro_batches),
        (replace(GRPO, loss=mean_of_means), kit.check_data_parallel),
        (replace(GRPO, loss=mean_of_means), kit.check_context_parallel),
        (replace(GRPO, loss=mean_metrics), kit.check_micro_batches),
        (replace(GRPO, loss=mean_metrics), kit.check_siblings_apart),
        (replace(GRPO, loss=masked_by_product), kit.check_under_mask),
        (replace(GRPO, loss=counts_the_masked), kit.check_padding),
        (replace(GRPO, loss=counts_the_masked), kit.check_masked_sample),
        (replace(GRPO, algorithm=OwnBaseline()), kit.check_micro_batches),
        (replace(GRPO, algorithm=LocalSequence()), kit.check_context_parallel),
        (replace(GRPO, algorithm=OneSidedReduce()), kit.check_context_parallel),
        (replace(GRPO, algorithm=GroupsByCount()), kit.check_order),
        (replace(GRPO, algorithm=WritesAdvantage()), kit.check_purity),
        (replace(GRPO, algorithm=DetachedRatio()), kit.check_gradient),
        (replace(GRPO, algorithm=ValuesOfMaskedTokens()), kit.check_returns),
        (replace(GRPO, algorithm=WhitensAll()), kit.check_padding),
        (replace(GRPO, algorithm=WhitensAll()), kit.check_masked_sample),
    ],
    ids=lambda x: (
        x.__name__ if callable(x) and not isinstance(x, Subject) else x.loss.__name__ + type(x.algorithm).__name__
    ),
)
def test_the_property_notices(subject: Subject, check: Callable[..., None]) -> None:
    for seed in range(2):
        case = random_case(seed, subject.algorithm.needs)
        with pytest.raises((AssertionError, TrainerError)):  # the step may notice before the property does
            check(subject, case, np.random.default_rng(seed))


@pytest.mark.parametrize("check", [*kit.CHECKS, kit.check_gradient], ids=lambda c: c.__name__)
def test_the_right_one_passes_what_the_wrong_ones_fail(check: Callable[..., None]) -> None:
    for seed in range(2):
        check(GRPO, random_case(seed), np.random.default_rng(seed))


def test_mean_of_means_is_off_by_much(record_property: Callable[[str, object], None]) -> None:
    """Not a matter of rounding: the gradient is off by a good part of itself."""
    case = random_case(0)
    bins = [[[i] for i in range(len(case.batch))]]
    right = GRPO.run(case).grad
    wrong = replace(GRPO, loss=mean_of_means).run(case, bins).grad / len(case.batch)
    error = float((wrong - right).norm() / right.norm())
    record_property("relative gradient error", error)
    assert error > 0.1
