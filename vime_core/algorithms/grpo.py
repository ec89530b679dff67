"""GRPO and the two variants that change its scale, its clip or its aggregation."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import torch

from vime_core.algorithms.common import group_advantage
from vime_core.algorithms.policy import CLIP, PolicyAlgorithm
from vime_core.api import AlgorithmInfo, Options

if TYPE_CHECKING:
    from vime_core.batch import StepBatch

#: whether advantages are divided by the group's standard deviation
STD: Options = MappingProxyType({"disable_grpo_std_normalization": False})

GROUP_ADVANTAGE = "(R - mean of the group) / (std of the group + 1e-6)"
CLIPPED = "max(-r A, -clip(r, 1 - eps_clip, 1 + eps_clip_high) A), r = exp(logp - old_logp)"


class Grpo(PolicyAlgorithm):
    """Advantages from the rewards of a prompt's rollouts, PPO's clipped surrogate."""

    name = "grpo"
    info = AlgorithmInfo(
        title="Group Relative Policy Optimization",
        source="Shao et al. 2024, arXiv 2402.03300",
        advantage=GROUP_ADVANTAGE + ", the same at every token of the sample",
        loss=CLIPPED,
        notes=(
            "std divides by n - 1; a group of one rollout, or of equal rewards, gets exactly 0 and is counted.",
            "With disable_grpo_std_normalization the advantage is R - mean.",
            "eps_clip_c bounds the loss of a negative advantage by -c A (dual clip, Ye et al. 2020, arXiv 1912.09729).",
            "The KL to the reference belongs in the loss (--use-kl-loss); kl_coef is not read.",
        ),
    )
    defaults: ClassVar[Options] = {**CLIP, **STD}
    group_based = True

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        return group_advantage(batch, divide_by_std=not options["disable_grpo_std_normalization"])


class DrGrpo(PolicyAlgorithm):
    """GRPO without its two biases: no division by the standard deviation, none by the response's own length."""

    name = "dr_grpo"
    info = AlgorithmInfo(
        title="GRPO Done Right",
        source="Liu et al. 2025, arXiv 2503.20783",
        advantage="R - mean of the group",
        loss=CLIPPED,
        notes=(
            "Aggregation fixed_length: token sums over the longest possible response, averaged over samples.",
            "A group of one gets 0.",
        ),
    )
    aggregate = "fixed_length"
    group_based = True

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        return group_advantage(batch, divide_by_std=False)


class Dapo(Grpo):
    """GRPO with a wider clip above and every token of the step alike."""

    name = "dapo"
    info = AlgorithmInfo(
        title="Decoupled Clip and Dynamic Sampling Policy Optimization",
        source="Yu et al. 2025, arXiv 2503.14476",
        advantage=GROUP_ADVANTAGE,
        loss=CLIPPED,
        notes=(
            "Clip 0.2 below, 0.28 above; aggregation token_mean; prompt_mean is the other reading of the paper.",
            "Dynamic sampling is the framework's: --dynamic-sampling-filter-path check_reward_nonzero_std with "
            "--over-sampling-batch-size.",
            "So are the penalty of overlong answers (--overlong-buffer-len, --overlong-penalty-factor) and leaving out "
            "truncated ones (--mask-truncated-samples).",
        ),
    )
    aggregate = "token_mean"
    defaults: ClassVar[Options] = {**Grpo.defaults, "eps_clip_high": 0.28}
