"""RLOO, OPO and MaxRL: other baselines and scales of a group, nothing divided by a standard deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vime_core.algorithms.common import STD_EPS, broadcast_to_tokens, centered_rewards, group_stats_of, sum_by
from vime_core.algorithms.grpo import CLIPPED, PolicyAlgorithm
from vime_core.api import AlgorithmInfo, Options

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


class Rloo(PolicyAlgorithm):
    """The baseline of a rollout is the mean of the others."""

    name = "rloo"
    info = AlgorithmInfo(
        title="REINFORCE Leave-One-Out",
        source="Ahmadian et al. 2024, arXiv 2402.14740",
        advantage="R - mean reward of the group's other rollouts",
        loss=CLIPPED,
        notes=(
            "With one optimizer step a rollout the gradient is plain REINFORCE's.",
            "A rollout of several samples counts by their mean; for one of one sample this is n / (n - 1) (R - mean of "
            "the group). A group of one gets 0.",
        ),
    )
    group_based = True

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        stats, reward = group_stats_of(batch), batch.t("reward").double()
        _, rollout = torch.unique(batch.t("rollout"), return_inverse=True)
        scored = stats.scored.double()
        mine = sum_by(rollout, torch.where(stats.scored, reward, 0.0)) / sum_by(rollout, scored).clamp(min=1)
        others = (stats.rollouts * stats.mean - mine) / (stats.rollouts - 1).clamp(min=1)
        teaches = stats.scored & (stats.std > 0)
        return broadcast_to_tokens(batch, torch.where(teaches, reward - others, 0.0))


class Opo(PolicyAlgorithm):
    """The baseline of least variance if a gradient's size grows with the response's length."""

    name = "opo"
    info = AlgorithmInfo(
        title="On-Policy RL with Optimal reward baseline",
        source="Hao et al. 2025, arXiv 2505.23585",
        advantage="R - mean of the group's rewards weighted by trainable tokens",
        loss=CLIPPED,
        notes=("A group of one, or of equal rewards, gets exactly 0.",),
    )
    group_based = True

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        centered, stats = centered_rewards(batch)
        tokens = batch.trainable_counts().double() * stats.scored
        shift = sum_by(stats.index, tokens * centered) / sum_by(stats.index, tokens).clamp(min=1)
        return broadcast_to_tokens(batch, torch.where(stats.scored & (stats.std > 0), centered - shift, 0.0))


class MaxRl(PolicyAlgorithm):
    """Divides by the group's mean reward, so that rare successes count more."""

    name = "maxrl"
    info = AlgorithmInfo(
        title="Maximum Likelihood Reinforcement Learning",
        source="Tajwar et al. 2026, arXiv 2602.02710",
        advantage="(R - mean of the group) / (mean of the group + 1e-6)",
        loss=CLIPPED,
        notes=(
            "Meant for rewards of 0 and 1, where the mean is the share of successes.",
            "A group whose mean is not above 0 gets 0: the quotient would turn its sign. So does a group of one.",
        ),
    )
    group_based = True

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        centered, stats = centered_rewards(batch)
        scaled = centered / (stats.mean.clamp(min=0.0) + STD_EPS)
        return broadcast_to_tokens(batch, torch.where(stats.mean > 0, scaled, 0.0))
