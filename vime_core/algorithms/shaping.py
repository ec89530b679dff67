"""What happens to a step's rewards before an algorithm's advantages, and to its advantages afterwards. Whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from vime_core.algorithms.common import whiten
from vime_core.api import TrainerError

if TYPE_CHECKING:
    from vime_core.algorithms.loss_config import LossConfig
    from vime_core.batch import StepBatch

Metrics = Mapping[str, float]


def overlong_penalty(lengths: torch.Tensor, longest: int, buffer: int, factor: float = 1.0) -> torch.Tensor:
    """[N] float64 ``factor * min(0, -(length - (longest - buffer)) / buffer)`` (Yu 2025, DAPO, arXiv 2503.14476): 0 up
    to ``longest - buffer`` tokens, ``-factor`` at ``longest``. lengths: [N] response tokens."""
    return factor * (-(lengths.double() - (longest - buffer)) / buffer).clamp(max=0.0)


def shape_rewards(batch: StepBatch, loss_config: LossConfig) -> tuple[StepBatch, Metrics]:
    """(the batch with penalties in its rewards, their mean over scored samples)."""
    if not loss_config.overlong_buffer_len:
        return batch, {}
    penalty = overlong_penalty(
        batch.t("response_lengths"),
        loss_config.max_response_len,
        loss_config.overlong_buffer_len,
        loss_config.overlong_penalty_factor,
    )
    scored = penalty[torch.isfinite(batch.t("reward"))]
    metrics = {"overlong_penalty": float(scored.mean())} if len(scored) else {}
    return replace(batch, reward=batch.reward + penalty.numpy()), metrics


def sampler_as_old(batch: StepBatch) -> StepBatch:
    """The batch whose old policy is the sampler.

    Raises:
        TrainerError: the sampler gave no finite log-prob for some trainable token.
    """
    mu = batch.t("rollout_logp")
    require_finite(batch, batch.t("mask"), {"rollout_logp": mu}, "use_rollout_logprobs")
    return batch.with_old_logp(mu)


def require_finite(batch: StepBatch, mask: torch.Tensor, columns: Mapping[str, torch.Tensor], who: str) -> None:
    """Raises:
    TrainerError: a column [R] is NaN or infinite at a trainable token; counts them and names the first sample.
    """
    for name, x in columns.items():
        bad = mask & ~torch.isfinite(x)
        if bad.any():
            sample = int(batch.seg()[bad][0])
            raise TrainerError(
                f"{who} needs {name}, which is not finite at {int(bad.sum())} of {int(mask.sum())} trainable tokens, "
                f"first in sample {sample} (group {batch.group[sample]}, rollout {batch.rollout[sample]})"
            )


def shape_advantages(
    batch: StepBatch, advantage: torch.Tensor, mask: torch.Tensor, loss_config: LossConfig
) -> tuple[torch.Tensor, Metrics]:
    """Whitened if asked for; then the teacher's term ``- coef * (old_logp - teacher_logp)``, which whitening would
    rescale away.

    Args:
        advantage: [R] float32, 0 outside ``mask`` [R].

    Returns:
        ([R] float32, metric ``opd_reverse_kl``: token mean of ``old_logp - teacher_logp``, wherever there is a
        teacher: an algorithm may read it, too).
    """
    if loss_config.normalize_advantages:
        advantage = whiten(advantage, mask)
    if "teacher_logp" not in batch.extra or batch.old_logp is None:
        return advantage, {}
    gap = torch.zeros_like(advantage)
    gap[mask] = batch.t("old_logp")[mask] - batch.t("teacher_logp")[mask]
    metrics = {"opd_reverse_kl": float(gap[mask].double().mean())} if mask.any() else {}
    return advantage - loss_config.opd_kl_coef * gap, metrics
