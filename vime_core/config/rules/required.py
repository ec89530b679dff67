"""Options that must be there, alone or beside another one, and ranges of single values."""

from __future__ import annotations

from collections.abc import Iterator

from vime_core.api import ConfigError
from vime_core.config import expression
from vime_core.config.catalogue import as_flag
from vime_core.config.facts import Facts
from vime_core.config.rules.option_text import flag, value_of
from vime_core.config.sections import Config

AT_LEAST_ONE = (
    "actor_num_nodes",
    "actor_num_gpus_per_node",
    "rollout_num_gpus",
    "rollout_num_gpus_per_engine",
    "save_interval",
    "keep_checkpoints",
    "ref_update_interval",
    "rollout_max_prompt_len",
    "rollout_batch_size",
    "n_samples_per_prompt",
    "over_sampling_batch_size",
    "num_rollout",
    "num_epoch",
    "rollout_max_response_len",
    "rollout_max_context_len",
    "reward_concurrency",
    "max_filter_rounds",
    "vllm_server_concurrency",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "lr_decay_iters",
    "global_batch_size",
    "num_steps_per_rollout",
    "micro_batch_size",
    "max_tokens_per_gpu",
    "log_probs_max_tokens_per_gpu",
    "eval_interval",
    "n_samples_per_eval_prompt",
    "eval_max_response_len",
    "update_weights_interval",
    "update_weight_buffer_size",
)
AT_LEAST_ZERO = (
    "ckpt_step",
    "start_rollout_id",
    "lr",
    "min_lr",
    "lr_warmup_iters",
    "weight_decay",
    "clip_grad",
    "adam_eps",
    "entropy_coef",
    "eval_temperature",
    "engine_retries",
    "sync_canary_tolerance",
    "critic_lr",
    "num_critic_only_steps",
    "opsm_delta",
    "eps_clip",
    "eps_clip_high",
)
ABOVE_ZERO = (
    "distributed_timeout_minutes",
    "start_timeout_secs",
    "reward_timeout_secs",
    "generate_timeout_secs",
    "train_timeout_secs",
    "vllm_weight_transfer_timeout_sec",
    "rollout_temperature",
)


def ranges(config: Config, facts: Facts) -> Iterator[str]:
    """Counts are at least 1, coefficients at least 0, deadlines above 0."""
    for names, bound, fits in (
        (AT_LEAST_ONE, "at least 1", lambda v: v >= 1),
        (AT_LEAST_ZERO, "at least 0", lambda v: v >= 0),
        (ABOVE_ZERO, "above 0", lambda v: v > 0),
    ):
        for name in names:
            value = value_of(config, name)
            if value is not None and not fits(value):
                yield f"{flag(config, name)} must be {bound}"
    if not 0 <= config.rollout.rollout_max_failure_ratio <= 1:
        yield f"{flag(config, 'rollout_max_failure_ratio')} is a share: give a number between 0 and 1"


def must_be_given(config: Config, facts: Facts) -> Iterator[str]:
    for name, what in (
        ("hf_checkpoint", "a Hugging Face folder with model and tokenizer"),
        ("prompt_data", "one or several .jsonl or .parquet files"),
        ("rollout_batch_size", "prompts a step"),
    ):
        if value_of(config, name) in (None, []):
            yield f"{as_flag(name)} is missing: give {what}"


def length_of_run(config: Config, facts: Facts) -> str | None:
    if config.rollout.num_rollout is None and config.rollout.num_epoch is None:
        return "the length of the run is missing: give --num-rollout (steps) or --num-epoch"
    return None


def response_length(config: Config, facts: Facts) -> str | None:
    if config.rollout.rollout_max_response_len is not None or not config.needs_engines:
        return None
    if config.rollout.rollout_function == "sft" and config.eval.eval_max_response_len is not None:
        return None
    return "--rollout-max-response-len is missing: give the longest response in tokens"


def save_needs_a_folder(config: Config, facts: Facts) -> str | None:
    if config.model.save_interval is not None and config.model.save is None:
        return f"{flag(config, 'save_interval')} has nowhere to save: give --save FOLDER"
    return None


def evaluation_needs_data(config: Config, facts: Facts) -> str | None:
    if config.eval.eval_interval is not None and not config.eval.eval_prompt_data:
        return f"{flag(config, 'eval_interval')} has no data set: give --eval-prompt-data NAME PATH"
    return None


def evaluation_pairs(config: Config, facts: Facts) -> Iterator[str]:
    pairs = config.eval.eval_prompt_data
    if len(pairs) % 2:
        yield f"{flag(config, 'eval_prompt_data')} must be pairs: NAME PATH [NAME PATH ...]"
    names = pairs[::2]
    yield from (
        f"{flag(config, 'eval_prompt_data')} names {name!r} twice; give each data set its own name"
        for name in sorted(set(names))
        if names.count(name) > 1 and not len(pairs) % 2
    )


def goals(config: Config, facts: Facts) -> Iterator[str]:
    """``stop_when`` and ``target`` are comparisons, and what they look at is measured."""
    for name in ("stop_when", "target"):
        text = value_of(config, name)
        if text is None:
            continue
        try:
            metric = expression.parse(text).metric
        except ConfigError as error:
            yield f"{as_flag(name)} ({config.provenance.get(name, 'default')}): {error}"
            continue
        if metric.startswith("eval/") and config.eval.eval_interval is None:
            yield f"{flag(config, name)} looks at an evaluation: give --eval-interval and --eval-prompt-data"


RULES = (
    must_be_given,
    length_of_run,
    response_length,
    ranges,
    save_needs_a_folder,
    evaluation_needs_data,
    evaluation_pairs,
    goals,
)
