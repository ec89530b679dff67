"""How far the trainer's log-probs are from the sampler's: the health of weight sync and numerics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vime_core.batch.step_batch import StepBatch


def mismatch(batch: StepBatch, logp: torch.Tensor) -> dict[str, float]:
    """Over trainable tokens that the sampler has a log-prob for.

    Args:
        logp: [R] the trainer's log-probs before the step.

    Returns:
        ``train/train_rollout_logprob_abs_diff`` (mean of ``|old - mu|``, natural log), its ``/max``, and
        ``train/missing_rollout_logprobs`` (trainable tokens without a sampler log-prob). Empty for supervised data.
    """
    mask, mu = batch.t("mask"), batch.t("rollout_logp")
    known = mask & torch.isfinite(mu)
    if not bool(known.any()):
        return {}
    gap = (logp[known].double() - mu[known].double()).abs()
    return {
        "train/train_rollout_logprob_abs_diff": float(gap.mean()),
        "train/train_rollout_logprob_abs_diff/max": float(gap.max()),
        "train/missing_rollout_logprobs": float((mask & ~known).sum()),
    }
