# ruff: noqa: RUF009  (opt() returns a dataclass field, whose containers are factories)
"""The section of the algorithm and of what the framework adds around it; see :mod:`vime_core.config.sections`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vime_core.config.option import opt


@dataclass(frozen=True)
class AlgorithmSection:
    """The algorithm and its options. An option that the chosen algorithm does not read is an error; None means the
    algorithm's own default."""

    advantage_estimator: str = opt("grpo", "registered algorithm or path")
    eps_clip: float | None = opt(None, "clip range below (and above, unless eps_clip_high)", algorithm=True)
    eps_clip_high: float | None = opt(None, "clip range above", algorithm=True)
    eps_clip_c: float | None = opt(None, "dual clip: bound on the loss of negative advantages", algorithm=True)
    disable_grpo_std_normalization: bool | None = opt(
        None, "do not divide by the group's standard deviation", algorithm=True
    )
    kl_coef: float | None = opt(None, "weight of the KL to the reference in the reward", algorithm=True)
    gamma: float | None = opt(None, "discount of rewards", algorithm=True)
    lambd: float | None = opt(None, "lambda of generalized advantage estimation", algorithm=True)
    normalize_advantages: bool = opt(False, "whiten advantages over the trainable tokens of the step")
    entropy_coef: float = opt(0.0, "weight of the entropy bonus")
    use_kl_loss: bool = opt(False, "add the KL to the reference to the loss")
    kl_loss_coef: float = opt(0.001, "weight of that term")
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = opt(
        "k2", "its estimator; k1 has no expected gradient, k2 that of the reverse KL, k3 that of the forward KL"
    )
    use_unbiased_kl: bool = opt(False, "multiply the estimator by the importance ratio: the reverse KL's gradient")
    use_rollout_logprobs: bool = opt(False, "the sampler's log-probs stand for the old policy's")
    use_tis: bool = opt(False, "truncated importance sampling against the sampler (--correction tis)")
    tis_clip: float = opt(2.0, "upper bound of its weight")
    tis_clip_low: float = opt(0.0, "lower bound of its weight")
    correction: str | None = opt(
        None, "off-policy correction: tis, icepop, mis or a path (vime: --custom-tis-function-path)"
    )
    correction_options: dict[str, Any] = opt({}, "options of the correction (JSON)")
    use_opsm: bool = opt(False, "drop sequences of negative advantage that drifted away from the sampler (OPSM)")
    opsm_delta: float = opt(1e-4, "how far they may drift: mean of mu - old over the sequence")
    pg_loss_type: Literal["ppo", "reinforce"] | None = opt(
        None, "reinforce: -A logp stands for the algorithm's own surrogate; ppo: the algorithm's, as without it"
    )
    use_score_centering: bool = opt(False, "subtract the plain policy gradient's mean under the sampler")
    score_centering_top_k: int = opt(128, "the sampler's likeliest tokens that it is computed from")
    get_mismatch_metrics: bool = opt(False, "log how far trainer and sampler are apart: kl, k3_kl, chi2, ESS")
    use_opd: bool = opt(False, "on-policy distillation: subtract the teacher's term from the advantages")
    opd_type: Literal["engine", "megatron"] | None = opt(
        None, "who computes the teacher's log-probs (vime's 'vllm' is 'engine')"
    )
    opd_kl_coef: float = opt(1.0, "weight of the teacher's term")
    mask_truncated_samples: bool = opt(False, "truncated samples keep their reward in the baseline and train nothing")
    overlong_buffer_len: int = opt(0, "tokens before the length limit in which a penalty grows (DAPO); 0 is off")
    overlong_penalty_factor: float = opt(1.0, "that penalty at the limit")
    value_clip: float | None = opt(None, "clip range of the critic's values", algorithm=True)
    num_critic_only_steps: int = opt(0, "first steps that train the critic alone")
    algorithm_options: dict[str, Any] = opt({}, "further options of the algorithm (JSON)")
