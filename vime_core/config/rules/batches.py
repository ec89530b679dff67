"""Samples, batches and tokens: what has to divide what, and what has to fit into what."""

from __future__ import annotations

from collections.abc import Iterator

from vime_core.config.facts import Facts
from vime_core.config.rules.option_text import flag
from vime_core.config.sections import Config

_SAMPLES = ("rollout_batch_size", "n_samples_per_prompt")


def step_by_global_batch(config: Config, facts: Facts) -> str | None:
    size, samples = config.train.global_batch_size, config.samples_per_step
    if not size or not samples or (size > 0 and samples % size == 0):
        return None
    return (
        f"{samples} samples a step ({flag(config, *_SAMPLES)}) are not a multiple of "
        f"{flag(config, 'global_batch_size')}; the rest would never be trained on: choose a divisor"
    )


def step_by_optimizer_steps(config: Config, facts: Facts) -> Iterator[str]:
    steps, samples = config.train.num_steps_per_rollout, config.samples_per_step
    if not steps or steps < 1 or not samples:
        return
    if samples % steps:
        yield (
            f"{flag(config, 'num_steps_per_rollout')} does not divide {samples} samples a step "
            f"({flag(config, *_SAMPLES)}); choose a divisor"
        )
    elif config.train.global_batch_size and config.train.global_batch_size * steps != samples:
        yield (
            f"{flag(config, 'num_steps_per_rollout', 'global_batch_size')} do not make the {samples} samples "
            "of a step; give one of them"
        )


def global_batch_by_data_parallel(config: Config, facts: Facts) -> str | None:
    size, parallel = config.global_batch, _data_parallel(config)
    if size < 1 or parallel < 1 or config.train.micro_batch_size < 1:
        return None
    if size < parallel:
        return (
            f"a global batch of {size} leaves some of {parallel} data parallel ranks without a sample; {_batch(config)}"
        )
    micro = config.train.micro_batch_size
    if not config.train.use_dynamic_batch_size and size % (parallel * micro):
        return (
            f"a global batch of {size} is not a multiple of data parallel {parallel} x "
            f"{flag(config, 'micro_batch_size')}; {_batch(config)}, or use --use-dynamic-batch-size"
        )
    return None


def _data_parallel(config: Config) -> int:
    whole = config.model_parallel_size > 0 and config.trainer_ranks % config.model_parallel_size == 0
    return config.data_parallel_size if whole else 0


def _batch(config: Config) -> str:
    name = "global_batch_size" if config.train.global_batch_size else "num_steps_per_rollout"
    return f"change {flag(config, name, *_SAMPLES)}"


def dynamic_batches(config: Config, facts: Facts) -> str | None:
    if config.train.use_dynamic_batch_size and config.train.max_tokens_per_gpu is None:
        return f"{flag(config, 'use_dynamic_batch_size')} needs --max-tokens-per-gpu"
    return None


def longest_sample(config: Config) -> int | None:
    """Tokens of the longest sample there can be, as far as options bound it."""
    r = config.rollout
    bounds = [r.rollout_max_context_len, config.vllm.get("max_model_len")]
    if config.data.rollout_max_prompt_len and r.rollout_max_response_len:
        bounds.append(config.data.rollout_max_prompt_len + r.rollout_max_response_len)
    known = [bound for bound in bounds if isinstance(bound, int) and bound > 0]
    return min(known, default=None)


def tokens_by_longest_sample(config: Config, facts: Facts) -> Iterator[str]:
    longest, parallel = longest_sample(config), config.megatron.context_parallel_size
    if not config.train.use_dynamic_batch_size or longest is None:
        return
    for name in ("max_tokens_per_gpu", "log_probs_max_tokens_per_gpu"):
        limit = getattr(config.train, name)
        if limit and limit * parallel < longest:
            yield (
                f"{flag(config, name)} x {flag(config, 'context_parallel_size')} holds {limit * parallel} tokens, "
                f"a sample may have {longest}; raise it, or lower --rollout-max-response-len"
            )


def prompt_and_response_by_context(config: Config, facts: Facts) -> str | None:
    prompt, response = config.data.rollout_max_prompt_len, config.rollout.rollout_max_response_len
    limits = {
        "--rollout-max-context-len": config.rollout.rollout_max_context_len,
        "--vllm-max-model-len": config.vllm.get("max_model_len"),
        "the model's max_position_embeddings": facts.number("max_position_embeddings"),
    }
    for name, limit in limits.items():
        wanted = (prompt or 0) + (response or 0)
        # without a prompt length, even the shortest prompt has a token
        if response and isinstance(limit, int) and limit > 0 and wanted + (prompt is None) > limit:
            return (
                f"{flag(config, 'rollout_max_prompt_len', 'rollout_max_response_len')} do not fit into "
                f"{name} = {limit}; shorten one of them"
            )
    return None


def context_by_model(config: Config, facts: Facts) -> str | None:
    length, limit = config.rollout.rollout_max_context_len, facts.number("max_position_embeddings")
    if length and limit and length > limit:
        return f"{flag(config, 'rollout_max_context_len')} is longer than the model's max_position_embeddings = {limit}"
    return None


def evaluation_by_context(config: Config, facts: Facts) -> str | None:
    length, limit = config.eval.eval_max_response_len, facts.number("max_position_embeddings")
    if length and limit and length >= limit:
        return f"{flag(config, 'eval_max_response_len')} leaves no room for a prompt in the model's {limit} positions"
    return None


def over_sampling(config: Config, facts: Facts) -> str | None:
    more, size = config.rollout.over_sampling_batch_size, config.rollout.rollout_batch_size
    if more is not None and size is not None and more < size:
        return f"{flag(config, 'over_sampling_batch_size')} cannot fill a step: {flag(config, 'rollout_batch_size')}"
    return None


RULES = (
    step_by_global_batch,
    step_by_optimizer_steps,
    global_batch_by_data_parallel,
    dynamic_batches,
    tokens_by_longest_sample,
    prompt_and_response_by_context,
    context_by_model,
    evaluation_by_context,
    over_sampling,
)
