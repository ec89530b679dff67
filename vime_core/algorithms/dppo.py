"""DPPO: a trust region in probability, not in the ratio, and measured against the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from vime_core.algorithms.common import bounded_exp
from vime_core.algorithms.grpo import GROUP_ADVANTAGE, RANGE, STD, Grpo, clip_fractions, clip_range
from vime_core.api import AlgorithmInfo, Options, TokenView


class Dppo(Grpo):
    """A token stops counting once the probability of what was sampled moved too far in the advantage's direction."""

    name = "dppo"
    info = AlgorithmInfo(
        title="Divergence Proximal Policy Optimization, binary total variation",
        source="Qi et al. 2026, arXiv 2602.04879",
        advantage=GROUP_ADVANTAGE,
        loss="-keep r A, r = p / mu, p = exp(logp), mu = exp(rollout_logp); "
        "keep = 0 if A > 0 and p - mu > eps_clip_high, or A < 0 and mu - p > eps_clip, else 1",
        notes=(
            "The ratio is to the sampler, so a correction such as --use-tis would count the mismatch twice.",
            "A token without the sampler's log-prob has ratio 1.",
        ),
    )
    needs = frozenset({"rollout_logp", "reward"})
    defaults: ClassVar[Options] = {**RANGE, **STD}

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        low, high = clip_range(options)
        moved = view.logp.detach().exp() - _sampler(view).exp()
        below, above = (advantage < 0) & (-moved > low), (advantage > 0) & (moved > high)
        r = self.used_ratio(view, advantage, options)
        return torch.where(below | above, 0.0, -r * advantage), clip_fractions(below, above)

    def used_ratio(self, view: TokenView, advantage: torch.Tensor, options: Options) -> torch.Tensor:
        """[r] to the sampler."""
        return bounded_exp(view.logp - _sampler(view))


def _sampler(view: TokenView) -> torch.Tensor:
    """[r] its log-probs; the policy's own where it gave none."""
    now = view.logp.detach()
    mu = view.extra["rollout_logp"].to(now.dtype)
    return torch.where(mu.isnan(), now, mu)
