"""GSPO and GMPO: one importance ratio for the whole sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from vime_core.algorithms.common import bounded_exp
from vime_core.algorithms.grpo import GROUP_ADVANTAGE, RANGE, STD, Grpo, clip_fractions, clip_range, drift
from vime_core.api import AlgorithmInfo, Options, TokenView


class Gspo(Grpo):
    """GRPO with a ratio per sequence."""

    name = "gspo"
    info = AlgorithmInfo(
        title="Group Sequence Policy Optimization",
        source="Zheng et al. 2025, arXiv 2507.18071",
        advantage=GROUP_ADVANTAGE,
        loss="max(-s A, -clip(s, 1 - eps_clip, 1 + eps_clip_high) A), s = exp(mean over the sample of logp - old_logp)",
        notes=(
            "Clip 3e-4 below, 4e-4 above, as in the paper; slime keeps 0.2 unless told, which hardly ever clips.",
            "The gradient goes through the mean: a term that differs by token (a teacher's, a token's correction) acts "
            "through its mean over the sample.",
            "Clip fractions are decided per sample and counted per token.",
        ),
    )
    defaults: ClassVar[Options] = {**Grpo.defaults, "eps_clip": 3e-4, "eps_clip_high": 4e-4}

    def ratio(self, view: TokenView) -> torch.Tensor:
        return view.broadcast_to_tokens(bounded_exp(view.seq_mean(view.logp - view.old_logp)))


class Gmpo(Grpo):
    """GRPO with the geometric mean of clipped token ratios."""

    name = "gmpo"
    info = AlgorithmInfo(
        title="Geometric-Mean Policy Optimization",
        source="Zhao et al. 2025, arXiv 2507.20673",
        advantage=GROUP_ADVANTAGE,
        loss="-A exp(mean over the sample of d), d = min(logp - old_logp, eps_clip_high) if A > 0, "
        "max(logp - old_logp, -eps_clip) if A < 0",
        notes=("The bounds are on the log ratio, 0.4 each.",),
    )
    aggregate = "sample_mean"
    defaults: ClassVar[Options] = {**RANGE, "eps_clip": 0.4, **STD}

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        low, high = clip_range(options)
        d = view.logp - view.old_logp
        s = self.used_ratio(view, advantage, options)
        fractions = clip_fractions((advantage < 0) & (d < -low), (advantage > 0) & (d > high))
        return -advantage * s, drift(view, self.ratio(view)) | fractions

    def used_ratio(self, view: TokenView, advantage: torch.Tensor, options: Options) -> torch.Tensor:
        """[r] the geometric mean of the sample's clipped ratios."""
        low, high = clip_range(options)
        d = view.logp - view.old_logp
        bounded = torch.where(advantage < 0, d.clamp(min=-low), d.clamp(max=high))
        return view.broadcast_to_tokens(bounded_exp(view.seq_mean(bounded)))
