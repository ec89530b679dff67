"""Samples as JSON values and back, exactly. NaN log-probs travel as null, so that the text is valid JSON anywhere."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from vime_core.data.sample import Sample, Status
from vime_core.interfaces.reward import Score, Unscored

#: fields that are JSON values already; logprobs, status and reward are not
_PLAIN = tuple(f.name for f in fields(Sample) if f.name not in ("logprobs", "status", "reward"))


def sample_to_json(sample: Sample) -> dict[str, Any]:
    values = {name: getattr(sample, name) for name in _PLAIN}
    values["logprobs"] = [None if math.isnan(x) else x for x in sample.logprobs]
    values["status"] = sample.status.value
    values["reward"] = reward_to_json(sample.reward)
    return values


def sample_from_json(values: dict[str, Any]) -> Sample:
    rest = {name: values[name] for name in _PLAIN}
    logprobs = [math.nan if x is None else x for x in values["logprobs"]]
    reward = reward_from_json(values["reward"])
    return Sample(**rest, logprobs=logprobs, status=Status(values["status"]), reward=reward)


def reward_to_json(reward: Score | Unscored | None) -> dict[str, Any] | None:
    if reward is None:
        return None
    if isinstance(reward, Unscored):
        return {"unscored": reward.reason}
    return {"value": reward.value, "parts": dict(reward.parts)}


def reward_from_json(values: dict[str, Any] | None) -> Score | Unscored | None:
    if values is None:
        return None
    return Unscored(values["unscored"]) if "unscored" in values else Score(values["value"], values["parts"])
