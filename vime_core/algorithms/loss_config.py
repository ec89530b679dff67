"""What the framework adds around any algorithm: terms of the loss, shaping, corrections. Plain values, no torch.

    loss = sum over trainable tokens of  w * correction * surrogate  +  w * kl_loss_coef * KL  -  w * entropy_coef * H

Rewards are shaped before an algorithm's advantages, advantages are whitened and then get the teacher's term after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from vime_core.api import TOP_IDS, TOP_LOGP

if TYPE_CHECKING:
    from vime_core.config import AlgorithmSection, Config

#: IcePop's bounds where none are given
ICEPOP: Mapping[str, float] = MappingProxyType({"low": 0.5, "high": 5.0})


@dataclass(frozen=True)
class LossConfig:
    """The defaults add nothing.

    Attributes:
        entropy_coef: weight of the entropy bonus.
        kl_loss_coef: weight of the KL to the reference in the loss; 0 is off. kl_loss_type, use_unbiased_kl: its form,
            see :mod:`vime_core.algorithms.kl`.
        normalize_advantages: whiten them over the trainable tokens of the step.
        opd_kl_coef: weight of the teacher's term in the advantages; 0 is off.
        correction: name or path of the off-policy correction. correction_options: its keyword arguments.
        opsm_delta: how far a sequence of negative advantage may drift from the sampler; None is off.
        use_rollout_logprobs: the sampler's log-probs stand for the old policy's.
        mask_truncated_samples: they keep their reward in the baseline and train nothing.
        overlong_buffer_len: tokens before ``max_response_len`` in which the penalty grows; 0 is off.
        overlong_penalty_factor: the penalty at ``max_response_len``.
        get_mismatch_metrics: log the distance of trainer and sampler in detail.
        plain_gradient: ``-A logp`` stands for the algorithm's own surrogate.
        score_centering_top_k: likeliest tokens of the sampler that centre the plain gradient; 0 is off.
            score_centering_weight, score_centering_bounds (low, high; none without a weight): see
            :class:`vime_core.algorithms.centering.ImportanceWeight`; a correction goes in there and nowhere else.
    """

    entropy_coef: float = 0.0
    kl_loss_coef: float = 0.0
    kl_loss_type: str = "k2"
    use_unbiased_kl: bool = False
    normalize_advantages: bool = False
    opd_kl_coef: float = 0.0
    correction: str | None = None
    correction_options: Mapping[str, Any] = field(default_factory=dict)
    opsm_delta: float | None = None
    use_rollout_logprobs: bool = False
    mask_truncated_samples: bool = False
    overlong_buffer_len: int = 0
    overlong_penalty_factor: float = 1.0
    max_response_len: int = 0
    get_mismatch_metrics: bool = False
    plain_gradient: bool = False
    score_centering_top_k: int = 0
    score_centering_weight: Literal["none", "truncate", "mask"] = "none"
    score_centering_bounds: Sequence[float] = ()

    @classmethod
    def of(cls, config: Config) -> LossConfig:
        """What the flags ask for; a supervised loss adds nothing. Contradictions are for the rules to find."""
        given = config.algorithm
        if config.train.loss_type == "sft_loss":
            return cls()
        tis = {"low": given.tis_clip_low, "high": given.tis_clip}
        chosen = None if given.use_score_centering else given.correction or ("tis" if given.use_tis else None)
        return cls(
            entropy_coef=given.entropy_coef,
            kl_loss_coef=given.kl_loss_coef if given.use_kl_loss else 0.0,
            kl_loss_type=given.kl_loss_type,
            use_unbiased_kl=given.use_unbiased_kl,
            normalize_advantages=given.normalize_advantages,
            opd_kl_coef=given.opd_kl_coef if given.use_opd else 0.0,
            correction=chosen,
            correction_options=given.correction_options if given.correction or not given.use_tis else tis,
            opsm_delta=given.opsm_delta if given.use_opsm else None,
            use_rollout_logprobs=given.use_rollout_logprobs,
            mask_truncated_samples=given.mask_truncated_samples,
            overlong_buffer_len=given.overlong_buffer_len,
            overlong_penalty_factor=given.overlong_penalty_factor,
            max_response_len=config.rollout.rollout_max_response_len or 0,
            get_mismatch_metrics=given.get_mismatch_metrics,
            plain_gradient=given.pg_loss_type == "reinforce",
            **_score_centering(given),
        )

    @property
    def corrects(self) -> bool:
        """Weights or drops tokens by their distance to the sampler."""
        return self.correction is not None or self.opsm_delta is not None

    @property
    def needs(self) -> frozenset[str]:
        """Columns that the loss reads beside the algorithm's."""
        readers = {
            "ref_logp": bool(self.kl_loss_coef),
            "teacher_logp": bool(self.opd_kl_coef),
            "rollout_logp": self.corrects or self.use_rollout_logprobs or bool(self.score_centering_top_k),
            TOP_IDS.name: bool(self.score_centering_top_k),
            TOP_LOGP.name: bool(self.score_centering_top_k),
            "old_logp": self.recompute_old_logprobs or bool(self.kl_loss_coef and self.use_unbiased_kl),
            "reward": bool(self.overlong_buffer_len),
        }
        return frozenset(name for name, read in readers.items() if read)

    @property
    def recompute_old_logprobs(self) -> bool:
        """Reads ``old_logp`` once a step, before any micro-batch."""
        return self.corrects or bool(self.opd_kl_coef)


def _score_centering(given: AlgorithmSection) -> dict[str, Any]:
    if not given.use_score_centering:
        return {}
    found: dict[str, Any] = {"score_centering_top_k": given.score_centering_top_k}
    if given.use_tis:
        found |= {"score_centering_weight": "truncate"}
        return {**found, "score_centering_bounds": (given.tis_clip_low, given.tis_clip)}
    if given.correction is not None:  # the rules let none through but this one
        bounds = [float(given.correction_options.get(name, default)) for name, default in ICEPOP.items()]
        return {**found, "score_centering_weight": "mask", "score_centering_bounds": bounds}
    return found


NO_LOSS_CONFIG = LossConfig()
