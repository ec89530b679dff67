"""Groups -> the typed batch of the step, in one pass over flat lists; and -> records for the run folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from vime_core.api import (
    ROUTING,
    TEACHER_LOGP,
    Group,
    Sample,
    Score,
    Status,
    TokenStream,
    Unscored,
)
from vime_core.batch import StepBatch
from vime_core.data import nan_to_null, sample_to_json
from vime_core.rollout.driver import Collected
from vime_core.rollout.streams import stream_column

#: keys that every record has, whether the sample has such a stream or not
_ALWAYS: dict[str, Any] = {ROUTING.name: None, "top": None, TEACHER_LOGP.name: []}


def to_batch(groups: Sequence[Group], *, rewarded: bool = True, streams: Sequence[TokenStream] = ()) -> StepBatch:
    """The samples of the groups, in order.

    Args:
        rewarded: otherwise there are no rewards, and the batch holds NaN, as it does for an unscored sample.
        streams: each becomes a column of its name.

    Raises:
        ValueError: a sample is not finished, or has no score.
        EngineError: a sample lacks a stream at a token that its loss depends on.
    """
    samples = [sample for group in groups for sample in group.samples]
    unfinished = [s.name for s in samples if s.status not in (Status.COMPLETED, Status.TRUNCATED)]
    if unfinished:
        raise ValueError(f"unfinished samples cannot be trained on: {', '.join(unfinished[:3])}")
    lengths = np.array([len(s.response_tokens) for s in samples], dtype=np.int64)
    total = lengths + np.array([len(s.prompt_tokens) for s in samples], dtype=np.int64)
    size = int(lengths.sum())
    return StepBatch.of(
        tokens=_flat((part for s in samples for part in (s.prompt_tokens, s.response_tokens)), "int64", total.sum()),
        total_lengths=total,
        response_lengths=lengths,
        mask=_flat((s.loss_mask for s in samples), "bool", size),
        rollout_logp=_flat((s.logprobs for s in samples), "float32", size),
        version=_flat((s.versions for s in samples), "int32", size),
        reward=np.array([_value(s) if rewarded else np.nan for s in samples], dtype=np.float64),
        group=np.array([s.group for s in samples], dtype=np.int64),
        rollout=np.array([s.rollout for s in samples], dtype=np.int64),
        truncated=np.array([s.status is Status.TRUNCATED for s in samples], dtype=bool),
        extra={stream.name: stream_column(stream, samples) for stream in streams},
    )


def _flat(parts: Iterable[Sequence[Any]], dtype: str, size: int) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), dtype=dtype, count=int(size))


def _value(sample: Sample) -> float:
    if isinstance(sample.reward, Unscored):
        return math.nan
    if not isinstance(sample.reward, Score):
        raise ValueError(f"{sample.name} has no score: {sample.reward}")
    return sample.reward.value


def records(collected: Collected) -> list[dict[str, Any]]:
    """Samples as they are kept in the run folder: JSON values, one a sample, those trained on, then those of dropped
    groups. Of the streams those with one number a token are kept; routed experts and tables of likeliest tokens are
    many times the rest, and nobody reads them."""
    fates = [(group, "trained", "") for group in collected.groups]
    fates += [(dropped.group, dropped.outcome.value, dropped.reason) for dropped in collected.dropped]
    return [
        {"step": collected.step, "outcome": outcome, "reason": reason} | _record(sample)
        for group, outcome, reason in fates
        for sample in group.samples
    ]


def _record(sample: Sample) -> dict[str, Any]:
    record = sample_to_json(sample) | _ALWAYS
    del record["streams"]
    scalars = {s.name: nan_to_null(rows.tolist()) for s, rows in sample.streams.items() if not s.dims}
    return record | scalars
