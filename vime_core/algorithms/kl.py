"""Estimators of a token's KL divergence from one sampled token, d = logp - ref_logp (Schulman 2020).

A loss is differentiated, so what counts is the expected *gradient* of the estimator, not its expected value. For tokens
drawn from the policy itself:

    k1   d                  0: no pull at all, only noise. Right in a reward, where nothing is differentiated
    k2   d^2 / 2            reverse KL(policy, reference)
    k3   exp(-d) - 1 + d    forward KL(reference, policy)
    low_var_kl              k3, at most 10; no gradient past that

``unbiased`` multiplies by exp(logp - old_logp), so that tokens drawn from the old policy count as the current one's.
The ratio keeps its gradient (the policy's own change is part of the derivative), and all of them get the reverse KL's.
"""

from __future__ import annotations

import torch

from vime_core.algorithms.common import LOG_RATIO_LIMIT, bounded_exp

LOW_VAR_LIMIT = 10.0
KINDS = ("k1", "abs", "k2", "k3", "low_var_kl")


def kl_estimate(log_ratio: torch.Tensor, kind: str) -> torch.Tensor:
    """The estimator of ``kind`` (:data:`KINDS`), of the shape and dtype of ``log_ratio`` = logp - ref_logp.

    k3 takes a log ratio below -20 for -20: finite in float32, with no gradient past it.

    Raises:
        ValueError: unknown kind.
    """
    if kind == "k1":
        return log_ratio
    if kind == "abs":
        return log_ratio.abs()
    if kind == "k2":
        return log_ratio.square() / 2
    if kind in ("k3", "low_var_kl"):
        bounded = log_ratio.clamp(min=-LOG_RATIO_LIMIT)
        k3 = torch.expm1(-bounded) + bounded
        return k3 if kind == "k3" else k3.clamp(max=LOW_VAR_LIMIT)
    raise ValueError(f"KL estimator {kind!r} is unknown; there are {', '.join(KINDS)}")


def kl_loss(
    logp: torch.Tensor, ref_logp: torch.Tensor, old_logp: torch.Tensor, kind: str, *, unbiased: bool = False
) -> torch.Tensor:
    """[r] a token's KL as a loss, with gradient in ``logp``. All arguments [r]; see the table above for ``kind``.

    k2's own gradient is the reverse KL's already, so with ``unbiased`` its ratio only weighs.
    """
    estimate = kl_estimate(logp - ref_logp, kind)
    if not unbiased:
        return estimate
    ratio = bounded_exp(logp - old_logp)
    return estimate * (ratio.detach() if kind == "k2" else ratio)
