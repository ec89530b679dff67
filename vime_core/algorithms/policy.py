"""What the built-in policy algorithms share: PPO's clipped surrogate, and how options decide about needs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import torch

from vime_core.algorithms.common import clipped_loss, ratio
from vime_core.algorithms.kl import KINDS
from vime_core.algorithms.returns import reward_kl
from vime_core.api import Algorithm, Options, TokenView

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


# values of options: one name, one meaning, one range --------------------------------------------------------------
_FINITE = sys.float_info.max
_POSITIVE = (sys.float_info.min, _FINITE, "a number above 0")
_FROM_0_TO_1 = (0.0, 1.0, "a number from 0 to 1")
_AT_LEAST_0 = (0.0, _FINITE, "a number of at least 0")

#: option -> (least, most, what to give)
RANGES: Mapping[str, tuple[float, float, str]] = MappingProxyType(
    {
        "eps_clip": _FROM_0_TO_1,
        "eps_clip_high": (0.0, math.inf, "a number of at least 0"),
        "eps_clip_c": (math.nextafter(1.0, 2.0), math.inf, "a number above 1"),
        "kl_coef": _AT_LEAST_0,
        "gamma": _FROM_0_TO_1,
        "lambd": _FROM_0_TO_1,
        "value_clip": _POSITIVE,
        "tau_pos": _POSITIVE,
        "tau_neg": _POSITIVE,
        "teacher_coef": _POSITIVE,
    }
)
#: option -> the values it may have
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType({"kl_estimator": KINDS})


def out_of_range(options: Options) -> list[str]:
    """What is wrong, one line an option. None stands for "not given" and is fine; unknown names are not looked at."""
    wrong = [
        f"{name} is {options[name]!r}; give {want}"
        for name, (least, most, want) in RANGES.items()
        if options.get(name) is not None and not _within(options[name], least, most)
    ]
    return wrong + [
        f"{name} is {options[name]!r}; give one of {', '.join(known)}"
        for name, known in CHOICES.items()
        if name in options and options[name] not in known
    ]


def _within(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
