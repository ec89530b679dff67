"""What the built-in policy algorithms share: PPO's clipped surrogate, and how options decide about needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vime_core.algorithms.common import clipped_loss, ratio
from vime_core.algorithms.ranges import out_of_range
from vime_core.algorithms.returns import reward_kl
from vime_core.api.algorithm import Algorithm, TokenView

if TYPE_CHECKING:
    from vime_core.batch.step_batch import StepBatch

#: ``eps_clip`` below (and above, unless ``eps_clip_high``)
RANGE: Mapping[str, Any] = MappingProxyType({"eps_clip": 0.2, "eps_clip_high": None})
#: the same with ``eps_clip_c``: dual clip, off by default
CLIP: Mapping[str, Any] = MappingProxyType({**RANGE, "eps_clip_c": None})
#: options of a KL to the reference in the reward
REWARD_KL: Mapping[str, Any] = MappingProxyType({"kl_coef": 0.0, "kl_estimator": "k1"})


class PolicyAlgorithm(Algorithm):
    """A subclass brings ``advantages``; and ``ratio`` or ``surrogate`` where they differ from PPO's."""

    needs = frozenset({"old_logp", "reward"})
    defaults: ClassVar[Mapping[str, Any]] = CLIP

    def violations(self, options: Mapping[str, Any]) -> Sequence[str]:
        return out_of_range(options)

    def required(self, options: Mapping[str, Any]) -> frozenset[str]:
        return self.needs | {"ref_logp"} if options.get("kl_coef") else self.needs

    def correction(
        self, batch: StepBatch, options: Mapping[str, Any]
    ) -> tuple[torch.Tensor | None, Mapping[str, torch.Tensor]]:
        """No weights; the KL in the reward as a metric, before its coefficient."""
        return None, {"reward_kl": reward_kl(batch, batch.t("mask"), options)} if options.get("kl_coef") else {}

    def ratio(self, view: TokenView) -> torch.Tensor:
        """[r] what is clipped."""
        return ratio(view)

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Mapping[str, Any]
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        r = self.ratio(view)
        clipped = clipped_loss(r, advantage, *clip_range(options), options["eps_clip_c"])
        metrics = drift(view, r) | clip_fractions(clipped.low, clipped.high)
        if options["eps_clip_c"] is not None:
            metrics["pg_clipfrac_lower"] = clipped.dual
        return clipped.loss, metrics


def clip_range(options: Mapping[str, Any]) -> tuple[float, float]:
    """(eps below, eps above)."""
    low, high = options["eps_clip"], options["eps_clip_high"]
    return low, low if high is None else high


def drift(view: TokenView, r: torch.Tensor) -> dict[str, torch.Tensor]:
    """Metrics [r]: how far the policy is from the old one."""
    return {"ppo_kl": view.old_logp - view.logp, "ois": r}


def clip_fractions(low: torch.Tensor, high: torch.Tensor) -> dict[str, torch.Tensor]:
    """Metrics [r] of tokens that are held back below or above."""
    return {"pg_clipfrac": low | high, "pg_clipfrac_low": low, "pg_clipfrac_high": high}
