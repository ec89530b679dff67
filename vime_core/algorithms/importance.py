"""The corrections that come with vime: truncated and masked importance weights, and masks of whole sequences.

    tis      clamp(rho, low, high)                                      truncated importance sampling
    icepop   rho where low <= rho <= high, else 0
    mis      ratio of the token, the sequence or its geometric mean; truncated, clipped or masked; plus rejection
    opsm     drops a sequence of negative advantage that the policy has drifted away from

Each runs over a batch as :mod:`vime_core.algorithms.correction` describes, with names and levels from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from vime_core.algorithms.correction import CorrectionFunction, CorrectionResult
from vime_core.algorithms.loss_config import ICEPOP
from vime_core.algorithms.sampler_ratio import SamplerRatio, effective_sample_ratio
from vime_core.api import ConfigError

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


def tis(batch: StepBatch, advantage: torch.Tensor, *, low: float = 0.0, high: float = 2.0) -> CorrectionResult:
    """Truncated importance sampling (Yao 2025): [R] ``clamp(rho, low, high)``; 1 where rho is unknown."""
    _check_bounds(low, high)
    ratio = SamplerRatio.of(batch)
    weight = _known(ratio, "token", ratio.rho.clamp(low, high))
    return _with_metrics(ratio, ratio.rho, CorrectionResult(weight, torch.ones_like(ratio.mask)))


def icepop(
    batch: StepBatch,
    advantage: torch.Tensor,
    *,
    low: float = ICEPOP["low"],
    high: float = ICEPOP["high"],
    leave_denominator: bool = False,
) -> CorrectionResult:
    """IcePop (Ling Team 2025): rho itself within the bounds, both included; other tokens are rejected."""
    _check_bounds(low, high)
    ratio = SamplerRatio.of(batch)
    keep = _inside(ratio, "token", low, high)
    found = CorrectionResult(ratio.rho, keep, leaves_denominator=leave_denominator)
    return _with_metrics(ratio, ratio.rho, found)


@dataclass(frozen=True, kw_only=True)
class Mis:
    """Importance weights at any level, with rejection.

    Attributes:
        level: whose ratio is the weight: ``token``, ``sequence`` (product), ``geometric`` (mean of logs).
        mode: ``truncate`` bounds it above, ``clip`` on both sides, ``mask`` rejects what is outside.
        reject_level, reject_low, reject_high: reject tokens or sequences whose ratio of that level is outside; a bound
            of None is none.
        veto: one token ratio below this rejects the whole sequence (1e-4, say).
        normalize: divide by the mean weight of what is kept: over tokens at level ``token``, else over sequences.
        leave_denominator: rejected tokens are not counted.
    """

    level: str = "token"
    mode: str = "mask"
    low: float = 0.5
    high: float = 2.0
    reject_level: str = "geometric"
    reject_low: float | None = None
    reject_high: float | None = None
    veto: float | None = None
    normalize: bool = False
    leave_denominator: bool = False

    def __call__(self, batch: StepBatch, advantage: torch.Tensor) -> CorrectionResult:
        _check_bounds(self.low, self.high)
        if self.mode not in ("truncate", "clip", "mask"):
            raise ConfigError(f"mode {self.mode!r} is unknown; give truncate, clip or mask")
        ratio = SamplerRatio.of(batch)
        raw = ratio.level(self.level)
        keep = _inside(ratio, self.reject_level, self.reject_low, self.reject_high)
        vetoed = _vetoed(ratio, self.veto)
        if self.mode == "mask":
            weight, keep = raw, keep & _inside(ratio, self.level, self.low, self.high)
        else:
            weight = _known(ratio, self.level, raw.clamp(0.0 if self.mode == "truncate" else self.low, self.high))
        keep = keep & ~vetoed
        if self.normalize:
            weight = weight / _mean_weight(ratio, weight, keep, self.level)
        metrics = {} if self.veto is None else {"vetoed_samples": ratio.sample_ratio(vetoed)}
        return _with_metrics(ratio, raw, CorrectionResult(weight, keep, metrics, self.leave_denominator))


def opsm(batch: StepBatch, advantage: torch.Tensor, *, delta: float = 1e-4) -> CorrectionResult:
    """Off-policy sequence masking (DeepSeek-AI 2025): drops a sequence whose mean advantage is below 0 and whose mean
    of ``rollout_logp - old_logp`` is above ``delta``. All tokens of a sequence share the decision."""
    ratio = SamplerRatio.of(batch)
    chosen = torch.where(ratio.mask, advantage, torch.zeros((), dtype=advantage.dtype)).double()
    total = torch.zeros(len(batch), dtype=torch.float64).index_add_(0, ratio.seg, chosen)
    dropped = ((total < 0) & (-ratio.means > delta))[ratio.seg]
    metrics = {"opsm_clipfrac": ratio.token_mean(dropped), "missing_rollout_logprobs": ratio.missing}
    return CorrectionResult(None, ~dropped, metrics if ratio.mask.any() else {})


# parts -----------------------------------------------------------------------------------------------------------
def _check_bounds(low: float, high: float) -> None:
    if not (0 <= low <= high and high > 0 and math.isfinite(high)):
        raise ConfigError(f"bounds {low} and {high}: give 0 <= low <= high, and high above 0")


def _known(ratio: SamplerRatio, level: str, x: torch.Tensor) -> torch.Tensor:
    """x [R], but 1 at single tokens of which nothing is known."""
    return torch.where(ratio.known, x, torch.ones_like(x)) if level == "token" else x


def _inside(ratio: SamplerRatio, level: str, low: float | None, high: float | None) -> torch.Tensor:
    """[R] bool: the ratio of that level is within the bounds, both included; None is no bound."""
    x = ratio.level(level)
    inside = torch.ones_like(ratio.mask)
    if low is not None:
        inside = inside & (x >= low)
    if high is not None:
        inside = inside & (x <= high)
    return inside | ~ratio.known if level == "token" else inside


def _vetoed(ratio: SamplerRatio, threshold: float | None) -> torch.Tensor:
    """[R] bool: a token of the sample has a ratio below the threshold."""
    if threshold is None:
        return torch.zeros_like(ratio.mask)
    hit = torch.zeros(len(ratio.counts), dtype=torch.bool)
    hit[ratio.seg[ratio.known & (ratio.rho < threshold)]] = True
    return hit[ratio.seg]


def _mean_weight(ratio: SamplerRatio, weight: torch.Tensor, keep: torch.Tensor, level: str) -> torch.Tensor:
    """Mean of the weights that are kept, of tokens or of sequences; 1 if nothing is."""
    chosen = ratio.mask & keep
    if not chosen.any():
        return torch.ones((), dtype=weight.dtype)
    if level == "token":
        return weight[chosen].mean()
    each = torch.zeros(len(ratio.counts), dtype=weight.dtype)
    each[ratio.seg[chosen]] = weight[chosen]
    return each[torch.unique(ratio.seg[chosen])].mean()


def _with_metrics(ratio: SamplerRatio, raw: torch.Tensor, result: CorrectionResult) -> CorrectionResult:
    """With the metrics that all of these have. raw: [R] the ratio before anything is bounded."""
    weight, keep = result.weight, result.keep
    assert weight is not None, "these give a weight a token"
    assert keep is not None, "and say which are kept"
    final = torch.where(keep, weight, torch.zeros((), dtype=weight.dtype))
    metrics: dict[str, float] = {"missing_rollout_logprobs": ratio.missing}
    if ratio.mask.any():
        metrics |= {
            "tis": ratio.token_mean(raw),
            "tis_clipfrac": ratio.token_mean(final != raw),
            "tis_abs": ratio.token_mean((raw - 1).abs()),
            "rejected_tokens": ratio.token_mean(~keep),
            "rejected_samples": ratio.sample_ratio(~keep),
            **result.metrics,
        }
        if final[ratio.mask].any():
            metrics["ess"] = effective_sample_ratio(final[ratio.mask])
    return replace(result, metrics=metrics)


#: name -> function, as the core registers them
CORRECTIONS: Mapping[str, CorrectionFunction] = MappingProxyType(
    {"tis": tis, "icepop": icepop, "mis": Mis, "opsm": opsm}
)
