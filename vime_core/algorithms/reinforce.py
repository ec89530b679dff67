"""REINFORCE and the two forms of REINFORCE++: returns over trainable tokens, no critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch

from vime_core.algorithms.common import centered_rewards, scored_tokens, whiten
from vime_core.algorithms.grpo import CLIP, CLIPPED, REWARD_KL, PolicyAlgorithm
from vime_core.algorithms.returns import discounted, kl_penalty, token_rewards
from vime_core.api import AlgorithmInfo, Options, TokenView

if TYPE_CHECKING:
    from vime_core.batch import StepBatch

_KL = "kl_coef puts a KL to the reference into the reward of each token (kl_estimator k1 by default)."


class ReinforcePlusPlus(PolicyAlgorithm):
    """Returns of tokens, whitened over the whole step."""

    name = "reinforce_plus_plus"
    info = AlgorithmInfo(
        title="REINFORCE++",
        source="Hu et al. 2025, arXiv 2501.03262",
        advantage="G whitened over the step's trainable tokens; G = r + gamma G_next, "
        "r = R at the last trainable token - kl_coef kl(old_logp, ref_logp)",
        loss=CLIPPED,
        notes=(
            "Whitening is part of it, with var over n - 1; --normalize-advantages adds nothing.",
            "A masked token is no step: gamma discounts trainable tokens only (slime and OpenRLHF discount every one).",
            _KL,
        ),
    )
    defaults: ClassVar[Options] = {**CLIP, **REWARD_KL, "gamma": 1.0}
    recompute_old_logprobs = True

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        mask = scored_tokens(batch)
        return whiten(discounted(token_rewards(batch, options), mask, batch.seg(), options["gamma"]), mask)


class ReinforcePlusPlusBaseline(PolicyAlgorithm):
    """Rewards less the group's mean, whitened over the whole step."""

    name = "reinforce_plus_plus_baseline"
    info = AlgorithmInfo(
        title="REINFORCE++ with the group's mean as baseline",
        source="Hu et al. 2025, arXiv 2501.03262",
        advantage="R - mean of the group - kl_coef kl(old_logp, ref_logp), whitened over the step's trainable tokens",
        loss=CLIPPED,
        notes=("Whitening is part of it; --normalize-advantages adds nothing.", "A group of one adds no reward.", _KL),
    )
    defaults: ClassVar[Options] = {**CLIP, **REWARD_KL}
    recompute_old_logprobs = True
    group_based = True

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        mask = scored_tokens(batch)
        centered, _ = centered_rewards(batch)
        return whiten(centered[batch.seg()] - kl_penalty(batch, mask, options), mask)


class Reinforce(PolicyAlgorithm):
    """The plain policy gradient on returns."""

    name = "reinforce"
    info = AlgorithmInfo(
        title="REINFORCE",
        source="Williams 1992",
        advantage="G = r + gamma G_next, r = R at the last trainable token",
        loss="-A logp",
        notes=(
            "No baseline and no ratio: one optimizer step a rollout, or a correction against the sampler.",
            "--normalize-advantages whitens the returns.",
        ),
    )
    needs = frozenset({"reward"})
    defaults: ClassVar[Options] = {"gamma": 1.0}

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        rewards = token_rewards(batch, {"kl_coef": 0.0})
        return discounted(rewards, scored_tokens(batch), batch.seg(), options["gamma"]).float()

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -advantage * view.logp, {}
