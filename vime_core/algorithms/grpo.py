"""GRPO: advantages from the rewards of a prompt's tries, PPO's clipped surrogate (Shao 2024, arXiv 2402.03300)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vime_core.algorithms.common import clipped_loss, group_advantage, ratio
from vime_core.interfaces.algorithm import Algorithm, TokenView

if TYPE_CHECKING:
    from vime_core.batch.step_batch import StepBatch


class Grpo(Algorithm):
    """Options under vime's names: ``eps_clip`` (below, and above unless ``eps_clip_high``), ``eps_clip_c`` (dual clip,
    off by default), ``disable_grpo_std_normalization`` (Dr. GRPO, with aggregation fixed_length)."""

    name = "grpo"
    needs = frozenset({"old_logp", "reward"})
    aggregate = "rollout_mean"
    defaults: ClassVar[Mapping[str, Any]] = {
        "eps_clip": 0.2,
        "eps_clip_high": None,
        "eps_clip_c": None,
        "disable_grpo_std_normalization": False,
    }
    group_based = True

    def violations(self, options: Mapping[str, Any]) -> Sequence[str]:
        rules = {
            "eps_clip": (0.0, 1.0, "a number from 0 to 1"),
            "eps_clip_high": (0.0, math.inf, "a number of at least 0"),
            "eps_clip_c": (math.nextafter(1.0, 2.0), math.inf, "a number above 1"),
        }
        return [
            f"{name} is {options[name]!r}; give {want}"
            for name, (least, most, want) in rules.items()
            if options[name] is not None and not _within(options[name], least, most)
        ]

    def credit(self, batch: StepBatch, options: Mapping[str, Any]) -> torch.Tensor:
        return group_advantage(batch, divide_by_std=not options["disable_grpo_std_normalization"])

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Mapping[str, Any]
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        r = ratio(view)
        low, high = options["eps_clip"], options["eps_clip_high"]
        clipped = clipped_loss(r, advantage, low, low if high is None else high, options["eps_clip_c"])
        metrics = {
            "pg_clipfrac": clipped.low | clipped.high,
            "pg_clipfrac_low": clipped.low,
            "pg_clipfrac_high": clipped.high,
            "ppo_kl": view.old_logp - view.logp,
            "ois": r,
        }
        if options["eps_clip_c"] is not None:
            metrics["pg_clipfrac_lower"] = clipped.dual
        return clipped.loss, metrics


def _within(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
