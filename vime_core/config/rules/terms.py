"""Terms that the framework puts around an algorithm: KL in the loss, corrections, distillation, penalties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vime_core.config.catalogue import as_flag
from vime_core.config.facts import Facts
from vime_core.config.rules.option_text import flag, given, value_of
from vime_core.config.sections import Config

#: option -> the option without which nobody reads it
SWITCHES: Mapping[str, str] = {
    "kl_loss_coef": "use_kl_loss",
    "kl_loss_type": "use_kl_loss",
    "use_unbiased_kl": "use_kl_loss",
    "tis_clip": "use_tis",
    "tis_clip_low": "use_tis",
    "correction_options": "correction",
    "opsm_delta": "use_opsm",
    "opd_kl_coef": "use_opd",
    "score_centering_top_k": "use_score_centering",
    "log_probs_max_tokens_per_gpu": "use_dynamic_batch_size",
    "overlong_penalty_factor": "overlong_buffer_len",
}


def _supervised(config: Config) -> bool:
    """A supervised stage shares its flags with others and has no terms."""
    return config.train.loss_type == "sft_loss"


def switched_on(config: Config, facts: Facts) -> Iterator[str]:
    """An option that only another one brings to life."""
    if _supervised(config):
        return
    for name, switch in SWITCHES.items():
        if given(config, name) and not value_of(config, switch):
            yield f"{flag(config, name)} is not read without {as_flag(switch)}"


def kl_in_one_place(config: Config, facts: Facts) -> str | None:
    a = config.algorithm
    if not a.use_kl_loss or _supervised(config):
        return None
    if a.kl_coef:
        return f"{flag(config, 'kl_coef', 'use_kl_loss')} put the KL in the reward and in the loss; choose one"
    if a.algorithm_options.get("kl_coef"):
        return f"--algorithm-options kl_coef and {flag(config, 'use_kl_loss')} put the KL in both; choose one"
    return None


def kl_loss_pulls(config: Config, facts: Facts) -> Iterator[str]:
    """The term has a weight, and a gradient that is not zero on average."""
    a = config.algorithm
    if not a.use_kl_loss or _supervised(config):
        return
    if a.kl_loss_coef <= 0:
        yield f"{flag(config, 'kl_loss_coef')} must be above 0 with {flag(config, 'use_kl_loss')}"
    if a.kl_loss_type == "k1" and not a.use_unbiased_kl:
        yield (
            f"{flag(config, 'kl_loss_type')} as a loss pulls nowhere: the gradient of logp - ref_logp is zero on "
            "average; give --kl-loss-type k2 (reverse KL) or k3 (forward KL), or --use-unbiased-kl"
        )


def one_correction(config: Config, facts: Facts) -> Iterator[str]:
    """One correction at most besides OPSM, and one that has something to correct."""
    a = config.algorithm
    chosen = [name for name in ("use_tis", "correction", "use_opsm") if value_of(config, name)]
    if not chosen or _supervised(config):
        return
    if a.use_tis and a.correction is not None:
        yield f"{flag(config, 'use_tis', 'correction')} are two corrections of one gap; give one of them"
    if a.use_opsm and a.correction == "opsm":
        yield f"{flag(config, 'use_opsm', 'correction')} are the same; give one of them"
    if a.use_tis and not 0 <= a.tis_clip_low <= a.tis_clip:
        yield f"{flag(config, 'tis_clip_low', 'tis_clip')} must be bounds: 0 <= low <= high"
    if a.use_rollout_logprobs:
        yield (
            f"{flag(config, *chosen)}: nothing is left to correct where {flag(config, 'use_rollout_logprobs')} makes "
            "the sampler the old policy; give one of them"
        )
    if "rollout_logp" in (facts.reads or ()):
        yield f"{flag(config, *chosen)}: {flag(config, 'advantage_estimator')} compares with the sampler itself"


def one_teacher(config: Config, facts: Facts) -> Iterator[str]:
    """The teacher's term is there once, and nothing rescales it away."""
    a, own = config.algorithm, "teacher_logp" in (facts.reads or ())
    if _supervised(config):
        return
    if a.use_opd and own:
        yield f"{flag(config, 'advantage_estimator')} has a teacher's term already; leave out {flag(config, 'use_opd')}"
    if a.use_opd and a.opd_kl_coef <= 0:
        yield f"{flag(config, 'opd_kl_coef')} must be above 0"
    if a.normalize_advantages and own:
        yield (
            f"{flag(config, 'normalize_advantages')} would rescale the teacher's term of "
            f"{flag(config, 'advantage_estimator')} away; leave it out"
        )


def overlong(config: Config, facts: Facts) -> Iterator[str]:
    """The penalty begins inside the response, and somebody reads the reward it goes into."""
    buffer, longest = config.algorithm.overlong_buffer_len, config.rollout.rollout_max_response_len
    if not buffer or _supervised(config):
        return
    if longest is not None and not 0 < buffer < longest:
        limit = flag(config, "rollout_max_response_len")
        yield f"{flag(config, 'overlong_buffer_len')} must be above 0 and below {limit}"
    if config.algorithm.overlong_penalty_factor <= 0:
        yield f"{flag(config, 'overlong_penalty_factor')} must be above 0"
    if facts.reads is not None and "reward" not in facts.reads:
        yield f"{flag(config, 'overlong_buffer_len')}: {flag(config, 'advantage_estimator')} reads no reward"


def plain_gradient(config: Config, facts: Facts) -> Iterator[str]:
    """Nothing asks for a clip that is not there."""
    if config.algorithm.pg_loss_type != "reinforce" or _supervised(config):
        return
    clips = [name for name in ("eps_clip", "eps_clip_high", "eps_clip_c") if given(config, name)]
    if clips:
        yield f"{flag(config, *clips)} is not read with {flag(config, 'pg_loss_type')}, which has no ratio to clip"


def score_centring(config: Config, facts: Facts) -> Iterator[str]:
    """It centres the plain gradient, with a weight of single tokens, over a head that the vocabulary has."""
    a = config.algorithm
    if not a.use_score_centering or _supervised(config):
        return
    here = flag(config, "use_score_centering")
    if a.pg_loss_type != "reinforce":
        yield f"{here} centres the plain policy gradient: give --pg-loss-type reinforce"
    if a.use_opsm:
        yield f"{flag(config, 'use_opsm')} drops whole sequences, which {here} does not know of; give one of them"
    if a.correction not in (None, "icepop"):
        yield f"{flag(config, 'correction')} is no weight of single tokens; with {here} give --use-tis or icepop"
    odd = sorted(set(a.correction_options) - {"low", "high"})
    if odd:
        yield f"{flag(config, 'correction_options')}: {here} reads low and high, not {', '.join(odd)}"
    if a.use_opd:
        yield f"{flag(config, 'use_opd')} and {here} do not go together: the teacher's term has another mean"
    if a.use_rollout_logprobs:
        yield f"{flag(config, 'use_rollout_logprobs')}: {here} reads the policy's own log-probs; leave it out"
    size = facts.number("vocab_size")
    if a.score_centering_top_k < 1 or (size is not None and a.score_centering_top_k >= size):
        limit = f", below the vocabulary's {size}" if size is not None else ""
        yield f"{flag(config, 'score_centering_top_k')} must be at least 1{limit}"


RULES = (
    *(switched_on, kl_in_one_place, kl_loss_pulls, one_correction, one_teacher, overlong),
    *(plain_gradient, score_centring),
)
