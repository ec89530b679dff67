"""Metrics of samples: what was generated, how it was scored, what became of it."""

from __future__ import annotations

from vime_core.observe.names.metric import Mean, Metric


def _of(name: str, unit: str, mean: Mean, meaning: str, definition: str) -> Metric:
    return Metric(f"rollout/{name}", unit, meaning, definition, mean, "rollout/step")


_LENGTH = "response tokens, sampled and observed, of the samples trained on"
_AGE = "newest version that sampled in the step - oldest version in the sample"

ROLLOUT = (
    _of("step", "step", "value", "the step, counted from 0", "id of the rollout step; axis of all rollout/ metrics"),
    _of("raw_reward", "1", "sample mean", "what the reward function gave", "mean reward over the samples trained on"),
    _of(
        "reward_parts/<part>",
        "1",
        "sample mean",
        "one part of a reward with several",
        "mean of that part over the samples trained on that have it",
    ),
    _of("response_len/mean", "token", "sample mean", "length of responses", f"mean of {_LENGTH}"),
    _of("response_len/median", "token", "median", "length of responses", f"median of {_LENGTH}"),
    _of("response_len/max", "token", "maximum", "length of responses", f"maximum of {_LENGTH}"),
    _of("response_len/min", "token", "minimum", "length of responses", f"minimum of {_LENGTH}"),
    _of(
        "truncated_ratio",
        "ratio",
        "sample mean",
        "responses cut off by the length limit",
        "fraction of the samples trained on whose generation ended by length",
    ),
    _of(
        "repetition_frac",
        "ratio",
        "sample mean",
        "responses that run in circles",
        "fraction of responses of 200 characters or more whose last 10,000 compress tenfold, of all trained on",
    ),
    _of(
        "zero_std/count_<reward>",
        "group",
        "count",
        "groups that teach a group-based algorithm nothing",
        "groups trained on in which every sample has the same reward, by that reward rounded to one decimal",
    ),
    _of(
        "dynamic_filter/drop_<reason>",
        "group",
        "count",
        "groups that the dynamic filter dropped",
        "groups dropped in this step, by the filter's reason",
    ),
    _of(
        "requeued/<why>",
        "group",
        "count",
        "groups put back to be handed out again",
        "groups of this step that were surplus (finished beyond need), aborted, or retried after a failure",
    ),
    _of(
        "groups/<fate>",
        "group",
        "count",
        "what became of every group of the run; the counts add up",
        "groups so far by fate: trained, filtered, unscored, failed, in_flight, waiting; each group has exactly one",
    ),
    _of(
        "staleness/mean",
        "version",
        "sample mean",
        "how far off-policy the samples are",
        f"mean over samples of: {_AGE}",
    ),
    _of(
        "staleness/max", "version", "maximum", "how far off-policy the samples are", f"maximum over samples of: {_AGE}"
    ),
)
