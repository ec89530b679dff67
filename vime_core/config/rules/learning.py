"""Algorithm, reward and sampling: combinations from which nothing, or something else, would be learnt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vime_core.config.catalogue import as_flag
from vime_core.config.facts import Facts
from vime_core.config.nearest import did_you_mean
from vime_core.config.rules.option_text import flag
from vime_core.config.sections import AlgorithmSection, Config

AGGREGATIONS = ("sample_mean", "rollout_mean", "token_mean", "fixed_length", "prompt_mean")


def is_sft(config: Config) -> bool:
    return config.train.loss_type == "sft_loss"


def group_of_one(config: Config, facts: Facts) -> str | None:
    if is_sft(config) or not facts.group_based or config.rollout.n_samples_per_prompt != 1:
        return None
    return (
        f"{flag(config, 'advantage_estimator')} compares samples of one prompt, and "
        f"{flag(config, 'n_samples_per_prompt')} leaves nothing to compare (every advantage is 0); give 2 or more"
    )


def reward_is_given(config: Config, facts: Facts) -> Iterator[str]:
    if config.rollout.reward is not None:
        return
    if not is_sft(config) and (facts.needs is None or "reward" in facts.needs):
        yield "--reward is missing: give a registered name, pkg.mod:function or file.py:function"
    elif config.eval.eval_interval is not None and config.eval.eval_reward is None:
        yield f"{flag(config, 'eval_interval')} has nothing to score with: give --eval-reward or --reward"


def loss_and_rollout(config: Config, facts: Facts) -> str | None:
    """Labels as responses are for the supervised loss, and it for them."""
    if is_sft(config) == (config.rollout.rollout_function == "sft"):
        return None
    if is_sft(config) and config.rollout.rollout_function != "generate":
        return None  # somebody's own rollout may well bring finished responses
    return (
        f"{flag(config, 'loss_type', 'rollout_function')} do not go together: supervised training is "
        "--loss-type sft_loss --rollout-function sft"
    )


def labels_for_sft(config: Config, facts: Facts) -> str | None:
    if config.rollout.rollout_function == "sft" and config.data.label_key is None:
        return f"{flag(config, 'rollout_function')} trains on labels: give --label-key"
    return None


def unread_options(config: Config, facts: Facts) -> Iterator[str]:
    """Options that the chosen algorithm does not read."""
    if facts.algorithm_defaults is None or is_sft(config):
        return
    known, name = facts.algorithm_defaults, config.algorithm.advantage_estimator
    fields = [f for f, spec in AlgorithmSection.__dataclass_fields__.items() if spec.metadata.get("algorithm")]
    for field in fields:
        if getattr(config.algorithm, field) is not None and field not in known:
            yield f"{flag(config, field)} is not read by {name}{did_you_mean(field, known)} {_reads(known)}"
    source = config.provenance.get("algorithm_options", "default")
    for option in config.algorithm.algorithm_options:
        if option not in known:
            near = did_you_mean(option, known)
            yield f"--algorithm-options {option} ({source}) is not read by {name}{near} {_reads(known)}"
        elif option in fields and getattr(config.algorithm, option) is not None:
            yield f"{option} is given twice: {as_flag(option)} and --algorithm-options ({source}); keep one"


def _reads(known: Iterable[str]) -> str:
    return f"(it reads: {', '.join(known) or 'no options'})"


#: vLLM raises what is below to this (``vllm/sampling_params.py``), but for 0
LEAST_TEMPERATURE = 0.01


def comparable_log_probs(config: Config, facts: Facts) -> Iterator[str]:
    """The trainer's log-probs are those of the whole distribution, at the temperature that is asked for."""
    if config.eval.eval_temperature is not None and 0 < config.eval.eval_temperature < LEAST_TEMPERATURE:
        yield f"{flag(config, 'eval_temperature')}: vLLM samples at {LEAST_TEMPERATURE}; give it, or 0 (greedy)"
    if is_sft(config):
        return
    if 0 < config.rollout.rollout_temperature < LEAST_TEMPERATURE:
        yield (
            f"{flag(config, 'rollout_temperature')}: vLLM samples at {LEAST_TEMPERATURE} instead, and the trainer "
            f"would compute with another; give at least {LEAST_TEMPERATURE}"
        )
    for name, off in (("rollout_top_p", 1.0), ("rollout_top_k", -1)):
        if getattr(config.rollout, name) != off:
            yield (
                f"{flag(config, name)} cuts the distribution, so that engine and trainer log-probs cannot be compared; "
                f"leave it at {off} (--eval-{name.removeprefix('rollout_').replace('_', '-')} is free)"
            )


def aggregation(config: Config, facts: Facts) -> Iterator[str]:
    name = config.train.aggregation
    if name is not None and name not in AGGREGATIONS:
        near = did_you_mean(name, AGGREGATIONS)
        yield f"{flag(config, 'aggregation')} is unknown{near} (there are {', '.join(AGGREGATIONS)})"
    if name is not None and config.train.calculate_per_token_loss:
        both = flag(config, "calculate_per_token_loss", "aggregation")
        yield f"{both} both choose the weights of tokens; give one of them"


def group_reward(config: Config, facts: Facts) -> str | None:
    if config.rollout.group_rm and config.eval.eval_interval is not None and config.eval.eval_reward is None:
        return (
            f"{flag(config, 'group_rm')} judges groups, and an evaluation scores samples one by one: give --eval-reward"
            if config.eval.n_samples_per_eval_prompt == 1
            else None
        )
    return None


def learning_rates(config: Config, facts: Facts) -> str | None:
    m = config.megatron
    if m.min_lr > m.lr and m.lr_decay_style != "constant":
        return f"{flag(config, 'min_lr')} is above {flag(config, 'lr')}"
    return None


RULES = (
    group_of_one,
    reward_is_given,
    loss_and_rollout,
    labels_for_sft,
    unread_options,
    comparable_log_probs,
    aggregation,
    group_reward,
    learning_rates,
)
