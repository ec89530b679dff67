"""What the built-in policy algorithms share, PPO's clipped surrogate; then GRPO and the two variants that change its
scale, its clip or its aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import torch

from vime_core.algorithms.common import clipped_loss, group_advantage, ratio
from vime_core.algorithms.options import out_of_range
from vime_core.algorithms.returns import reward_kl
from vime_core.api import Algorithm, AlgorithmInfo, Options, TokenView

if TYPE_CHECKING:
    from vime_core.batch import StepBatch

#: ``eps_clip`` below (and above, unless ``eps_clip_high``)
RANGE: Options = MappingProxyType({"eps_clip": 0.2, "eps_clip_high": None})
#: the same with ``eps_clip_c``: dual clip, off by default
CLIP: Options = MappingProxyType({**RANGE, "eps_clip_c": None})
#: options of a KL to the reference in the reward
REWARD_KL: Options = MappingProxyType({"kl_coef": 0.0, "kl_estimator": "k1"})


class PolicyAlgorithm(Algorithm):
    """A subclass brings ``advantages``; and ``ratio`` or ``surrogate`` where they differ from PPO's."""

    needs = frozenset({"old_logp", "reward"})
    defaults: ClassVar[Options] = CLIP

    def violations(self, options: Options) -> Sequence[str]:
        return out_of_range(options)

    def required(self, options: Options) -> frozenset[str]:
        return self.needs | {"ref_logp"} if options.get("kl_coef") else self.needs

    def correction(self, batch: StepBatch, options: Options) -> tuple[torch.Tensor | None, Mapping[str, torch.Tensor]]:
        """No weights; the KL in the reward as a metric, before its coefficient."""
        return None, {"reward_kl": reward_kl(batch, batch.t("mask"), options)} if options.get("kl_coef") else {}

    def ratio(self, view: TokenView) -> torch.Tensor:
        """[r] what is clipped."""
        return ratio(view)

    def used_ratio(self, view: TokenView, advantage: torch.Tensor, options: Options) -> torch.Tensor:
        """[r] what advantages are multiplied by, before any clip of it: for those who read the loss."""
        return self.ratio(view)

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        r = self.ratio(view)
        clipped = clipped_loss(r, advantage, *clip_range(options), options["eps_clip_c"])
        metrics = drift(view, r) | clip_fractions(clipped.low, clipped.high)
        if options["eps_clip_c"] is not None:
            metrics["pg_clipfrac_lower"] = clipped.dual
        return clipped.loss, metrics


def clip_range(options: Options) -> tuple[float, float]:
    """(eps below, eps above)."""
    low, high = options["eps_clip"], options["eps_clip_high"]
    return low, low if high is None else high


def drift(view: TokenView, r: torch.Tensor) -> dict[str, torch.Tensor]:
    """Metrics [r]: how far the policy is from the old one."""
    return {"ppo_kl": view.old_logp - view.logp, "ois": r}


def clip_fractions(low: torch.Tensor, high: torch.Tensor) -> dict[str, torch.Tensor]:
    """Metrics [r] of tokens that are held back below or above."""
    return {"pg_clipfrac": low | high, "pg_clipfrac_low": low, "pg_clipfrac_high": high}


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
