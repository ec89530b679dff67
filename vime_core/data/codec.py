"""Samples as JSON values and back, exactly. NaN log-probs travel as null, so that the text is valid JSON anywhere;
routed experts and tables of likeliest tokens as base64 of their bytes."""

from __future__ import annotations

import base64
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from vime_core.api.reward import Score, Unscored
from vime_core.api.rollout import TopLogprobs
from vime_core.api.sample import Sample, Status

if TYPE_CHECKING:
    import numpy as np

#: per-token streams that may hold NaN
_STREAMS = ("logprobs", "teacher_logp")
#: fields that are JSON values already
_PLAIN = tuple(f.name for f in fields(Sample) if f.name not in (*_STREAMS, "routing", "top", "status", "reward"))


def sample_to_json(sample: Sample) -> dict[str, Any]:
    values = {name: getattr(sample, name) for name in _PLAIN}
    values |= {name: [None if math.isnan(x) else x for x in getattr(sample, name)] for name in _STREAMS}
    values["routing"] = _array_to_json(sample.routing)
    values["top"] = None if sample.top is None else [_array_to_json(x) for x in (sample.top.ids, sample.top.logprobs)]
    values["status"] = sample.status.value
    values["reward"] = reward_to_json(sample.reward)
    return values


def sample_from_json(values: dict[str, Any]) -> Sample:
    rest = {name: values[name] for name in _PLAIN}
    streams: dict[str, Any] = {name: [math.nan if x is None else x for x in values.get(name, [])] for name in _STREAMS}
    reward = reward_from_json(values["reward"])
    routing = _array_from_json(values.get("routing"))
    top = _top_from_json(values.get("top"))
    return Sample(**rest, **streams, routing=routing, top=top, status=Status(values["status"]), reward=reward)


def _top_from_json(values: list[Any] | None) -> TopLogprobs | None:
    if values is None:
        return None
    ids, logprobs = (_array_from_json(x) for x in values)
    assert ids is not None, "written together with"
    assert logprobs is not None, "its log-probs"
    return TopLogprobs(ids, logprobs)


def _array_to_json(array: np.ndarray | None) -> dict[str, Any] | None:
    if array is None:
        return None
    return {"type": array.dtype.str, "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def _array_from_json(values: dict[str, Any] | None) -> np.ndarray | None:
    if values is None:
        return None
    import numpy as np

    return np.frombuffer(base64.b64decode(values["data"]), values["type"]).reshape(values["shape"])


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
