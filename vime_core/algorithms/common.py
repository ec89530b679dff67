"""The arithmetic that algorithms share, each formula once, with its edge cases decided.

Log ratios are clamped to +-20 before ``exp``. Statistics are float64 in two passes; values that differ by no more than
rounding, relative to their size, are equal and have the standard deviation 0, so rounding is never blown up into an
advantage. Groups and rollouts are named by id.

One rule says who is in a group's statistics, for every estimator: the samples with a finite reward. What is not there,
unscored or without a trainable token of its own, has none when the advantages are asked for (``prepare.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vime_core.api import ROUNDING, TokenView

if TYPE_CHECKING:
    from vime_core.batch import StepBatch

LOG_RATIO_LIMIT = 20.0
STD_EPS = 1e-6


def trainable(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x with 0 where the mask is 0, in value and in gradient, whatever stands there. mask: [r]; x: [r, ...]."""
    shaped = mask.reshape(mask.shape + (1,) * (x.dim() - 1))
    return torch.where(shaped, x, torch.zeros((), dtype=x.dtype, device=x.device))


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp of a log ratio clamped to +-20: finite in float32, with zero gradient past the clamp."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def ratio(view: TokenView) -> torch.Tensor:
    """[r] PPO's ratio exp(logp - old_logp)."""
    return bounded_exp(view.logp - view.old_logp)


@dataclass(frozen=True)
class Clipped:
    """Loss and marks of :func:`clipped_loss`, all [r]."""

    loss: torch.Tensor
    low: torch.Tensor  # A < 0 and the ratio below its lower bound
    high: torch.Tensor  # A > 0 and the ratio above its upper bound
    dual: torch.Tensor  # the dual-clip bound is active


def clipped_loss(
    ratio: torch.Tensor, advantage: torch.Tensor, eps_low: float, eps_high: float, dual: float | None = None
) -> Clipped:
    """PPO's clipped surrogate (Schulman 2017), with separate bounds (DAPO) and dual clip (Ye 2020).

    ``max(-r A, -clip(r, 1 - eps_low, 1 + eps_high) A)``; with ``dual`` = c > 1, at most ``-c A`` where A < 0.
    """
    plain = -ratio * advantage
    bounded = -ratio.clamp(1 - eps_low, 1 + eps_high) * advantage
    loss, clipped = torch.maximum(plain, bounded), bounded > plain
    capped = torch.zeros_like(clipped)
    if dual is not None:
        cap = -dual * advantage
        capped = (advantage < 0) & (loss > cap)
        loss = torch.where(capped, cap, loss)
    return Clipped(loss, clipped & (advantage < 0), clipped & (advantage > 0), capped)


# groups ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GroupStats:
    """Statistics of each sample's group, [N] each.

    Attributes:
        mean, std: float64; std divides by n - 1 and is 0 where it is undefined or the rewards are equal.
        rollouts: rollouts with a reward in the group.
        index: number of the group, 0 .. G-1.
        scored: the sample's reward is a finite number; others take no part.
    """

    mean: torch.Tensor
    std: torch.Tensor
    rollouts: torch.Tensor
    index: torch.Tensor
    scored: torch.Tensor

    def count_groups(self, which: torch.Tensor) -> tuple[int, int]:
        """(groups with a sample in ``which`` [N], all groups that have a reward)."""
        return len(torch.unique(self.index[which & self.scored])), len(torch.unique(self.index[self.scored]))


def group_stats(reward: torch.Tensor, group: torch.Tensor, rollout: torch.Tensor) -> GroupStats:
    """Mean and standard deviation of rewards by group. reward, group, rollout: [N].

    A rollout counts once, divided equally over its samples, so one that fans out into many samples does not weigh more
    in the baseline: mean = sum v R / n, var = sum v (R - mean)^2 / (n - 1), with n rollouts and v = 1 / siblings.
    """
    scored = torch.isfinite(reward)
    value = torch.where(scored, reward, torch.zeros((), dtype=reward.dtype)).double()
    _, group_index = torch.unique(group, return_inverse=True)
    _, rollout_index = torch.unique(rollout, return_inverse=True)
    part = scored.double() / sum_by(rollout_index, scored.double()).clamp(min=1)
    rollouts = sum_by(group_index, part).round()
    mean = sum_by(group_index, part * value) / rollouts.clamp(min=1)
    variance = sum_by(group_index, part * (value - mean).square()) / (rollouts - 1).clamp(min=1)
    low, high = (_extreme(group_index, value, scored, how) for how in ("amin", "amax"))
    degenerate = (rollouts < 2) | _equal(low, high)
    return GroupStats(mean, variance.sqrt().masked_fill(degenerate, 0.0), rollouts.long(), group_index, scored)


def _extreme(index: torch.Tensor, value: torch.Tensor, scored: torch.Tensor, how: str) -> torch.Tensor:
    """[N] the smallest ("amin") or largest ("amax") score in the sample's group; 0 where there is none."""
    start = torch.full((len(value),), torch.inf if how == "amin" else -torch.inf, dtype=value.dtype)
    found = start.scatter_reduce(0, index[scored], value[scored], how)[index]
    return torch.where(found.isfinite(), found, 0.0)


def _equal(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """As :func:`vime_core.api.equal_rewards`."""
    return high - low <= ROUNDING * torch.maximum(low.abs(), high.abs())


def group_stats_of(batch: StepBatch) -> GroupStats:
    """The same for a batch."""
    return group_stats(batch.t("reward"), batch.t("group"), batch.t("rollout"))


def centered_rewards(batch: StepBatch) -> tuple[torch.Tensor, GroupStats]:
    """([N] float64 ``R - mean`` of the sample's group, the statistics).

    Exactly 0 for a group of one rollout, for a group whose rewards are all equal, and for a sample without reward.
    """
    stats = group_stats_of(batch)
    teaches = stats.scored & (stats.std > 0)
    return torch.where(teaches, batch.t("reward") - stats.mean, torch.zeros((), dtype=torch.float64)), stats


def group_advantage(batch: StepBatch, *, divide_by_std: bool = True) -> torch.Tensor:
    """[R] float32 ``(R - mean) / (std + 1e-6)`` of the sample's group (Shao 2024), or ``R - mean`` (Liu 2025); zeros as
    in :func:`centered_rewards`."""
    centered, stats = centered_rewards(batch)
    return broadcast_to_tokens(batch, centered / (stats.std + STD_EPS) if divide_by_std else centered)


def scored_tokens(batch: StepBatch) -> torch.Tensor:
    """[R] bool: trainable tokens of samples that have a reward."""
    return batch.t("mask") & torch.isfinite(batch.t("reward"))[batch.seg()]


def broadcast_to_tokens(batch: StepBatch, per_sample: torch.Tensor) -> torch.Tensor:
    """[N] -> [R] float32."""
    return per_sample.float()[batch.seg()]


def sum_by(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[N]: the sum of x over the samples of the same index."""
    return torch.zeros(len(x), dtype=x.dtype).index_add_(0, index, x)[index]


# whitening -------------------------------------------------------------------------------------------------------
def whiten(x: torch.Tensor, mask: torch.Tensor, *, eps: float = 1e-8) -> torch.Tensor:
    """[R] float32 ``(x - mean) / sqrt(var + eps)`` over the trainable tokens of the whole step, 0 elsewhere.

    var divides by n - 1. One token, or values that are equal up to rounding, give 0.
    """
    chosen = x[mask].double()
    out = torch.zeros(x.shape, dtype=torch.float32)
    if len(chosen) < 2:
        return out
    if not bool(_equal(chosen.min(), chosen.max())):
        centered = chosen - chosen.mean()
        variance = centered.square().sum() / (len(chosen) - 1)
        out[mask] = (centered / (variance + eps).sqrt()).float()
    return out
