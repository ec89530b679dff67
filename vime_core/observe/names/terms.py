"""Metrics of what the framework adds around an algorithm: KL, penalties, distillation, off-policy corrections."""

from __future__ import annotations

from vime_core.observe.names.metric import Mean, Metric


def _of(name: str, unit: str, mean: Mean, meaning: str, definition: str) -> Metric:
    return Metric(f"train/{name}", unit, meaning, definition, mean, "train/step")


_GAP = "how far apart trainer and sampler are"
_RHO = "rho = exp(old_logp - rollout_logp), its log clamped to +-20"
_KNOWN = f"over trainable tokens that the sampler has a log-prob for; {_RHO}"
_SAMPLES = "over samples with a trainable token that the sampler has a log-prob for"

TERMS = (
    _of(
        "kl_loss",
        "nat",
        "weighted sum",
        "the reference's part of the loss",
        "sum over trainable tokens of weight * the estimator kl_loss_type",
    ),
    _of(
        "ref_kl",
        "nat",
        "token mean",
        "how far the policy is from the reference",
        "mean of the estimator kl_loss_type (times the ratio with use_unbiased_kl) over trainable tokens",
    ),
    _of(
        "reward_kl",
        "nat",
        "token mean",
        "how far the policy before the step is from the reference",
        "mean of the estimator kl_estimator of old_logp - ref_logp over trainable tokens, before kl_coef",
    ),
    _of(
        "overlong_penalty",
        "1",
        "sample mean",
        "what long answers cost",
        "mean over scored samples of factor * min(0, -(length - (limit - buffer)) / buffer)",
    ),
    _of(
        "opd_reverse_kl",
        "nat",
        "token mean",
        "how far the policy is from the teacher",
        "mean of old_logp - teacher_logp over trainable tokens",
    ),
)

CORRECTIONS = (
    _of("tis", "1", "token mean", f"{_GAP}; about 1", f"mean ratio at the correction's level before any bound; {_RHO}"),
    _of("tis_abs", "1", "token mean", f"{_GAP}; about 0", "mean of |that ratio - 1|"),
    _of(
        "tis_clipfrac",
        "ratio",
        "token mean",
        "tokens whose weight was bounded or rejected",
        "fraction of trainable tokens whose weight is not that ratio",
    ),
    _of("rejected_tokens", "ratio", "token mean", "tokens that train nothing", "fraction of trainable tokens rejected"),
    _of(
        "rejected_samples",
        "ratio",
        "sample mean",
        "samples that lost tokens",
        "fraction of samples with a trainable token that have a rejected one",
    ),
    _of(
        "vetoed_samples",
        "ratio",
        "sample mean",
        "samples lost to a single token",
        "fraction of samples with a trainable token in which one has a ratio below the veto's threshold",
    ),
    _of(
        "ess",
        "ratio",
        "value",
        "how much of the step the weights leave; a warning below 0.5",
        "(sum w)^2 / (n sum w^2) over trainable tokens, w the correction's weights, 0 where rejected",
    ),
    _of(
        "opsm_clipfrac",
        "ratio",
        "token mean",
        "tokens in sequences that OPSM dropped",
        "fraction of trainable tokens in sequences of mean advantage < 0 and mean(rollout_logp - old_logp) > delta",
    ),
    _of("mismatch_kl", "nat", "token mean", _GAP, f"mean of -log rho {_KNOWN}"),
    _of("mismatch_k3_kl", "nat", "token mean", _GAP, f"mean of rho - 1 - log rho {_KNOWN}"),
    _of("mismatch_chi2_token", "1", "token mean", _GAP, f"less 1, mean of rho^2 {_KNOWN}"),
    _of("mismatch_ess", "ratio", "value", _GAP, f"(sum rho)^2 / (n sum rho^2) {_KNOWN}"),
    _of("mismatch_log_ppl_diff", "nat", "sample mean", _GAP, f"mean {_SAMPLES} of its mean of -log rho"),
    _of("mismatch_ppl_ratio", "1", "sample mean", _GAP, f"mean {_SAMPLES} of exp of its mean of -log rho"),
    _of(
        "mismatch_chi2_seq",
        "1",
        "sample mean",
        _GAP,
        f"mean {_SAMPLES} of exp(2 * its sum of log rho, clamped to +-20), less 1",
    ),
)
