"""How far the trainer's log-probs are from the sampler's: the health of weight sync and numerics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from vime_core.algorithms import SamplerRatio, effective_sample_ratio

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


def mismatch(
    batch: StepBatch, logp: torch.Tensor, *, samples: Sequence[int] | None = None, detailed: bool = False
) -> dict[str, float]:
    """Over trainable tokens that the sampler has a log-prob for.

    Args:
        logp: [R] the trainer's log-probs before the step.
        samples: look at these only; default: all.
        detailed: add :func:`distances`.

    Returns:
        ``train/train_rollout_logprob_abs_diff`` (mean of ``|old - mu|``, natural log), its ``/max``, and
        ``train/missing_rollout_logprobs`` (trainable tokens without a sampler log-prob). Empty for supervised data.
    """
    if samples is not None:
        here = np.isin(np.arange(len(batch)), samples)
        batch = replace(batch, mask=batch.mask & here[batch.seg().numpy()])
    mask, mu = batch.t("mask"), batch.t("rollout_logp")
    known = mask & torch.isfinite(mu)
    if not bool(known.any()):
        return {}
    gap = (logp[known].double() - mu[known].double()).abs()
    metrics = {
        "train/train_rollout_logprob_abs_diff": float(gap.mean()),
        "train/train_rollout_logprob_abs_diff/max": float(gap.max()),
        "train/missing_rollout_logprobs": float((mask & ~known).sum()),
    }
    if detailed:
        metrics |= {f"train/{name}": x for name, x in distances(SamplerRatio.of(batch, logp)).items()}
    return metrics


def distances(ratio: SamplerRatio) -> dict[str, float]:
    """Distances of the two policies, each as ``mismatch_<name>``; log rho = old - mu.

    Token means: ``kl`` (of -log rho, an estimate of KL(sampler, trainer)), ``k3_kl`` (rho - 1 - log rho),
    ``chi2_token`` (rho^2, less 1), and ``ess`` of rho. Sample means, over samples with a known token: ``log_ppl_diff``
    (of the mean of -log rho), ``ppl_ratio`` (its exp), ``chi2_seq`` (exp(2 sum of log rho), less 1).
    """
    log, rho = ratio.log[ratio.known], ratio.rho[ratio.known]
    some = ratio.counts > 0
    gap = -ratio.means[some]
    return {
        "mismatch_kl": float(-log.mean()),
        "mismatch_k3_kl": float((rho - 1 - log).mean()),
        "mismatch_chi2_token": float(rho.square().mean() - 1),
        "mismatch_ess": effective_sample_ratio(rho),
        "mismatch_log_ppl_diff": float(gap.mean()),
        "mismatch_ppl_ratio": float(gap.exp().mean()),
        "mismatch_chi2_seq": float((2 * ratio.bounded_sums[some]).exp().mean() - 1),
    }
