"""Sampling parameters from the configuration."""

from __future__ import annotations

from vime_core.api import ConfigError, SamplingParams
from vime_core.config import Config
from vime_core.data import LengthLimits


def train_params(config: Config) -> SamplingParams:
    """Of the rollout steps."""
    rollout = config.rollout
    return SamplingParams(
        max_tokens=_longest(rollout.rollout_max_response_len, config, "--rollout-max-response-len"),
        temperature=rollout.rollout_temperature,
        top_p=rollout.rollout_top_p,
        top_k=rollout.rollout_top_k,
        stop=tuple(rollout.rollout_stop),
        stop_token_ids=tuple(rollout.rollout_stop_token_ids),
        top_logprobs=config.algorithm.score_centering_top_k if config.algorithm.use_score_centering else 0,
    )


def eval_params(config: Config) -> SamplingParams:
    """Of the evaluations; what they do not set is as in training."""
    rollout, given = config.rollout, config.eval
    length = rollout.rollout_max_response_len if given.eval_max_response_len is None else given.eval_max_response_len
    temperature = rollout.rollout_temperature if given.eval_temperature is None else given.eval_temperature
    return SamplingParams(
        max_tokens=_longest(length, config, "--eval-max-response-len"),
        temperature=temperature,
        top_p=rollout.rollout_top_p if given.eval_top_p is None else given.eval_top_p,
        top_k=rollout.rollout_top_k if given.eval_top_k is None else given.eval_top_k,
        stop=tuple(rollout.rollout_stop),
        stop_token_ids=tuple(rollout.rollout_stop_token_ids),
    )


def _longest(given: int | None, config: Config, flag: str) -> int:
    longest = given if given is not None else LengthLimits.of(config).context
    if longest is None:
        raise ConfigError(f"how long may a response be? {flag} is not set and the model's context is not known")
    return longest
