"""Metrics of samples: what was generated, how it was scored, what became of it."""

from __future__ import annotations

from vime_core.observe.names.metric import Mean, Metric


def _of(name: str, unit: str, mean: Mean, meaning: str, definition: str) -> Metric:
    return Metric(f"rollout/{name}", unit, meaning, definition, mean, "rollout/step")


_LENGTH = "response tokens, sampled and observed, of the step's samples"

ROLLOUT = (
    _of("step", "step", "value", "the step, counted from 0", "id of the rollout step; axis of all rollout/ metrics"),
    _of("raw_reward", "1", "sample mean", "what the reward function gave", "mean reward over the samples trained on"),
    _of(
        "rewards",
        "1",
        "sample mean",
        "what the algorithm makes of it",
        "mean over samples of the reward after group normalisation",
    ),
    _of(
        "reward_parts/<part>",
        "1",
        "sample mean",
        "one part of a reward with several",
        "mean of Score.parts[<part>] over the samples that have it",
    ),
    _of("response_len/mean", "token", "sample mean", "length of responses", f"mean of {_LENGTH}"),
    _of("response_len/median", "token", "median", "length of responses", f"median of {_LENGTH}"),
    _of("response_len/max", "token", "maximum", "length of responses", f"maximum of {_LENGTH}"),
    _of("response_len/min", "token", "minimum", "length of responses", f"minimum of {_LENGTH}"),
    _of(
        "truncated_ratio",
        "share",
        "sample mean",
        "responses cut off by the length limit",
        "share of samples whose generation ended by length, from their status",
    ),
    _of(
        "repetition_frac",
        "share",
        "sample mean",
        "responses that run in circles",
        "share of samples whose response ends in a repeating pattern",
    ),
    _of(
        "zero_std/count_<reward>",
        "group",
        "count",
        "groups that teach a group-based algorithm nothing",
        "groups in which every sample has the same reward, by that reward rounded to one decimal",
    ),
    _of(
        "dynamic_filter/drop_<reason>",
        "group",
        "count",
        "groups that the dynamic filter dropped",
        "groups dropped in this step, by the filter's reason",
    ),
    _of(
        "ledger/<fate>",
        "group",
        "count",
        "what became of every group of the run; the counts add up",
        "groups so far, by fate: each group that was drawn has exactly one",
    ),
    _of(
        "log_probs",
        "nat",
        "token mean",
        "how sure the trainer was of what was sampled",
        "mean of the trainer's log-prob before the step, over trainable tokens",
    ),
    _of(
        "rollout_log_probs",
        "nat",
        "token mean",
        "how sure the sampler was",
        "mean of the sampler's log-prob as it sampled, over trainable tokens that have one",
    ),
    _of(
        "staleness/mean",
        "version",
        "sample mean",
        "how far off-policy the samples are",
        "mean over samples of: version at the start of training - oldest version in the sample",
    ),
    _of(
        "staleness/max", "version", "maximum", "how far off-policy the samples are", "maximum of the same over samples"
    ),
    _of(
        "prefix_cache_hit_rate",
        "share",
        "value",
        "prompt tokens that the engines did not compute again",
        "cached prompt tokens / prompt tokens of the step",
    ),
    _of(
        "avg_cached_tokens_per_sample",
        "token",
        "sample mean",
        "use of the prefix cache",
        "mean over samples of prompt tokens served from the prefix cache",
    ),
)
