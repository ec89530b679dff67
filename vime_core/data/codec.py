"""Samples as JSON values and back, exactly. NaN log-probs travel as null, so that the text is valid JSON anywhere;
streams as base64 of their bytes, each with its declaration, so that those of a plugin come back too."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from vime_core.api import Sample, Score, Status, TokenStream, Unscored

if TYPE_CHECKING:
    import numpy as np

#: fields that are JSON values already
_PLAIN = tuple(f.name for f in fields(Sample) if f.name not in ("logprobs", "streams", "status", "reward"))


def sample_to_json(sample: Sample) -> dict[str, Any]:
    values = {name: getattr(sample, name) for name in _PLAIN}
    values["logprobs"] = nan_to_null(sample.logprobs)
    values["streams"] = [_stream_to_json(stream, rows) for stream, rows in sample.streams.items()]
    values["status"] = sample.status.value
    values["reward"] = reward_to_json(sample.reward)
    return values


def sample_from_json(values: dict[str, Any]) -> Sample:
    rest = {name: values[name] for name in _PLAIN}
    logprobs = [math.nan if x is None else x for x in values["logprobs"]]
    streams = dict(map(_stream_from_json, values.get("streams", ())))
    reward = reward_from_json(values["reward"])
    return Sample(**rest, logprobs=logprobs, streams=streams, status=Status(values["status"]), reward=reward)


def nan_to_null(values: Iterable[float]) -> list[float | None]:
    return [None if math.isnan(x) else x for x in values]


def _stream_to_json(stream: TokenStream, rows: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(rows.tobytes()).decode()
    return {"stream": asdict(stream), "type": rows.dtype.str, "shape": list(rows.shape), "data": data}


def _stream_from_json(values: dict[str, Any]) -> tuple[TokenStream, np.ndarray]:
    import numpy as np

    declared = values["stream"]
    stream = TokenStream(**{**declared, "dims": tuple(declared["dims"])})
    return stream, np.frombuffer(base64.b64decode(values["data"]), values["type"]).reshape(values["shape"])


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
