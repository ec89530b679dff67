"""CISPO: a policy gradient whose importance weight is clipped, so that no token loses its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from vime_core.algorithms.grpo import GROUP_ADVANTAGE, STD, Grpo, clip_fractions, clip_range, drift
from vime_core.api import AlgorithmInfo, Options, TokenView


class Cispo(Grpo):
    """GRPO's advantages with a clipped, detached weight."""

    name = "cispo"
    info = AlgorithmInfo(
        title="Clipped Importance Sampling Policy Optimization",
        source="MiniMax 2025, arXiv 2506.13585; bounds of Khatri et al. 2025 (ScaleRL), arXiv 2510.13786",
        advantage=GROUP_ADVANTAGE,
        loss="-w A logp, w = clip(exp(logp - old_logp), 1 - eps_clip, 1 + eps_clip_high) without gradient",
        notes=(
            "The weight's bounds are 0 and 5: eps_clip 1, eps_clip_high 4. In TRL epsilon_high is the bound itself.",
            "pg_clipfrac counts weights at a bound, whatever the sign of the advantage.",
        ),
    )
    aggregate = "token_mean"
    defaults: ClassVar[Options] = {"eps_clip": 1.0, "eps_clip_high": 4.0, **STD}

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        low, high = clip_range(options)
        r = self.ratio(view).detach()
        weight = r.clamp(1 - low, 1 + high)
        return -weight * advantage * view.logp, drift(view, r) | clip_fractions(r < 1 - low, r > 1 + high)
