"""Score centering (arXiv 2609.20807): the plain policy gradient less its expectation under the sampler.

    loss_t = A ( sum_v sg(q_v w_v) logp_v - sg(w_a) logp_a )        w_v = f(p_v / q_v)

for the sampled token a, the sampler's probabilities q and the policy's p, and f the importance weight (1 without a
correction). The first term takes away what the second gives on average over q, so it lowers the variance and pulls
nowhere. q is known for its likeliest tokens, the top k; the rest of its mass is taken to lie as the policy's does:
q_v = rho p_v with rho = (1 - Q) / (1 - P), both floored at 1e-6, so that the rest weighs alpha p_v with
alpha = rho f(1 / rho). Its gradient follows from theirs, because probabilities sum to 1:
sum_rest sg(p_v) grad logp_v = - sum_topk p_v grad logp_v. The value of the loss is off by a constant; gradients count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vime_core.algorithms.common import bounded_exp

#: least probability outside the top k
_FLOOR = 1e-6


@dataclass(frozen=True)
class ImportanceWeight:
    """f. ``none`` is 1; ``truncate`` is clamp(ratio, low, high); ``mask`` is the ratio within the bounds, else 0."""

    kind: Literal["none", "truncate", "mask"] = "none"
    low: float = 0.0
    high: float = float("inf")

    def __call__(self, ratio: torch.Tensor) -> torch.Tensor:
        if self.kind == "none":
            return torch.ones_like(ratio)
        if self.kind == "truncate":
            return ratio.clamp(self.low, self.high)
        return torch.where((ratio >= self.low) & (ratio <= self.high), ratio, torch.zeros_like(ratio))


@dataclass(frozen=True)
class TopkLogprobs:
    """Natural logs of one model. sampled: [r] of the sampled tokens; topk: [r, k] of the sampler's likeliest tokens,
    each different at a position."""

    sampled: torch.Tensor
    topk: torch.Tensor


def centered_loss(
    policy: TopkLogprobs, sampler: TopkLogprobs, advantage: torch.Tensor, weight: ImportanceWeight
) -> torch.Tensor:
    """[r] the loss above, with gradient through ``policy``. advantage: [r]."""
    with torch.no_grad():
        own = weight(bounded_exp(policy.sampled - sampler.sampled))
        p, q = policy.topk.exp(), sampler.topk.exp()
        rho = (1 - q.sum(1)).clamp(min=_FLOOR) / (1 - p.sum(1)).clamp(min=_FLOOR)
        alpha = rho * weight(1 / rho)
        pull = q * weight(bounded_exp(policy.topk - sampler.topk)) - alpha[:, None] * p
    return advantage * ((pull * policy.topk).sum(1) - own * policy.sampled)
