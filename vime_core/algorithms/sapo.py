"""SAPO: a soft gate where PPO clips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from vime_core.algorithms.grpo import GROUP_ADVANTAGE, STD, Grpo, drift
from vime_core.api import AlgorithmInfo, Options, TokenView


class Sapo(Grpo):
    """GRPO's advantages; the further a ratio is from 1, the less its token counts."""

    name = "sapo"
    info = AlgorithmInfo(
        title="Soft Adaptive Policy Optimization",
        source="Gao et al. 2025, arXiv 2511.20347",
        advantage=GROUP_ADVANTAGE,
        loss="-(4 / tau) sigmoid(tau (r - 1)) A, r = exp(logp - old_logp), tau = tau_pos if A > 0 else tau_neg",
        notes=(
            "tau_pos 1.0 and tau_neg 1.05, through --algorithm-options; nothing is clipped, so eps_clip is not read.",
            "The loss at r = 1 is -2 A / tau; the gradient there is that of PPO.",
        ),
    )
    defaults: ClassVar[Options] = {"tau_pos": 1.0, "tau_neg": 1.05, **STD}

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        r = self.ratio(view)
        tau = torch.full_like(r, options["tau_neg"]).masked_fill(advantage > 0, options["tau_pos"])
        return -(4 / tau) * torch.sigmoid(tau * (r - 1)) * advantage, drift(view, r)
