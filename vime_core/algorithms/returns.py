"""Returns and advantages over time, where the steps of a sample are its trainable tokens and nothing else.

A masked token (a tool's answer, an environment's observation, padding) is no action: rewards pass over it without being
discounted, values on it are not read, and the scalar reward sits on the last trainable token. All functions take and
give the whole response axis [R] in float64; what stands at masked positions is ignored, and the result there is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from vime_core.algorithms.common import scored_tokens
from vime_core.algorithms.kl import kl_estimate

if TYPE_CHECKING:
    from vime_core.api import Options
    from vime_core.batch import StepBatch


def discounted(x: torch.Tensor, mask: torch.Tensor, seg: torch.Tensor, decay: float) -> torch.Tensor:
    """``y_t = x_t + decay * y_next`` over each sample's trainable tokens. x, mask, seg: [R]."""
    left = steps_left(mask, seg)
    y = x[mask].double()
    order = torch.argsort(left, stable=True)
    ends = torch.cumsum(torch.bincount(left), 0).tolist()
    for start, end in pairwise(ends):  # all samples at once, from the last token backwards
        at = order[start:end]
        y[at] += decay * y[at + 1]
    return _to_axis(y, mask)


def following(x: torch.Tensor, mask: torch.Tensor, seg: torch.Tensor) -> torch.Tensor:
    """x at the sample's next trainable token, 0 after the last. x, mask, seg: [R]."""
    moved = x[mask].double().roll(-1)
    return _to_axis(torch.where(steps_left(mask, seg) > 0, moved, torch.zeros_like(moved)), mask)


def at_last(per_sample: torch.Tensor, mask: torch.Tensor, seg: torch.Tensor) -> torch.Tensor:
    """A number per sample [N], put on the sample's last trainable token."""
    at_tokens = per_sample[seg[mask]].double()
    return _to_axis(torch.where(steps_left(mask, seg) == 0, at_tokens, torch.zeros_like(at_tokens)), mask)


@dataclass(frozen=True)
class Discount:
    """Of later rewards (``gamma``), and of later temporal-difference errors beside it (``lambd``)."""

    gamma: float
    lambd: float


def gae(
    reward: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, seg: torch.Tensor, discount: Discount
) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantages, returns) by generalized advantage estimation (Schulman 2015, arXiv 1506.02438).

    ``delta_t = r_t + gamma V_next - V_t``, ``A_t = delta_t + gamma lambd A_next``, return = A + V; V after the last
    trainable token is 0, also for a truncated response. reward, values, mask, seg: [R].
    """
    v = _to_axis(values[mask].double(), mask)
    delta = reward.double() + discount.gamma * following(v, mask, seg) - v
    advantage = discounted(delta, mask, seg, discount.gamma * discount.lambd)
    return advantage, advantage + v


def token_rewards(batch: StepBatch, options: Options) -> torch.Tensor:
    """[R] the sample's reward on its last trainable token, less the KL penalty on each; 0 for unscored samples."""
    mask = scored_tokens(batch)
    return at_last(batch.t("reward"), mask, batch.seg()) - kl_penalty(batch, mask, options)


def kl_penalty(batch: StepBatch, mask: torch.Tensor, options: Options) -> torch.Tensor:
    """[R] ``kl_coef * reward_kl``; its columns are read only where kl_coef is not 0."""
    if not options["kl_coef"]:
        return torch.zeros(len(mask), dtype=torch.float64)
    return options["kl_coef"] * reward_kl(batch, mask, options)


def reward_kl(batch: StepBatch, mask: torch.Tensor, options: Options) -> torch.Tensor:
    """[R] the estimate ``kl_estimator`` of the KL to the reference from ``old_logp - ref_logp``."""
    gap = batch.t("old_logp")[mask].double() - batch.t("ref_logp")[mask].double()
    return _to_axis(kl_estimate(gap, options["kl_estimator"]), mask)


def steps_left(mask: torch.Tensor, seg: torch.Tensor) -> torch.Tensor:
    """[S] int64, for each of the S trainable tokens: how many of its sample come after it. mask, seg: [R]."""
    _, counts = torch.unique_consecutive(seg[mask], return_counts=True)
    return torch.repeat_interleave(torch.cumsum(counts, 0), counts) - 1 - torch.arange(int(counts.sum()))


def _to_axis(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[S] -> [R]: back to the response axis, 0 at masked tokens."""
    return torch.zeros(len(mask), dtype=torch.float64).masked_scatter_(mask, x)
