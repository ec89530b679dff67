"""Groups -> the typed batch of the step, in one pass over flat lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from vime_core.api.reward import Score
from vime_core.api.sample import Group, Sample, Status
from vime_core.batch.routing import ROUTING
from vime_core.batch.step_batch import Axis, StepBatch
from vime_core.batch.top_logprobs import TOP_IDS, TOP_LOGP
from vime_core.rollout.convert_routing import routing_column
from vime_core.rollout.convert_top import top_columns


def to_batch(
    groups: Sequence[Group],
    *,
    rewarded: bool = True,
    teacher: bool = False,
    routing: bool = False,
    top: bool = False,
) -> StepBatch:
    """The samples of the groups, in order.

    Args:
        rewarded: otherwise there are no rewards, and the batch holds NaN.
        teacher: there are log-probs of a teacher; they become the column ``teacher_logp``, NaN at observations.
        routing: the experts that the engine chose become the column ``routing`` (token axis).
        top: the sampler's likeliest tokens become two columns (response axis).

    Raises:
        ValueError: a sample is not finished, or has no score, or none of the teacher's log-probs.
        EngineError: a sample lacks experts, or likeliest tokens.
    """
    samples = [sample for group in groups for sample in group.samples]
    unfinished = [s.name for s in samples if s.status not in (Status.COMPLETED, Status.TRUNCATED)]
    if unfinished:
        raise ValueError(f"unfinished samples cannot be trained on: {', '.join(unfinished[:3])}")
    lengths = np.array([len(s.response_tokens) for s in samples], dtype=np.int64)
    total = lengths + np.array([len(s.prompt_tokens) for s in samples], dtype=np.int64)
    size = int(lengths.sum())
    extra: dict[str, tuple[Axis, np.ndarray]] = {}
    if teacher:
        extra["teacher_logp"] = ("response", _teacher(samples, size))
    if routing:
        extra[ROUTING] = ("token", routing_column(samples))
    if top:
        ids, values = top_columns(samples)
        extra |= {TOP_IDS: ("response", ids), TOP_LOGP: ("response", values)}
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
        extra=extra,
    )


def _teacher(samples: Sequence[Sample], size: int) -> np.ndarray:
    unread = [s.name for s in samples if not s.has_teacher]
    if unread:
        raise ValueError(f"no log-probs of the teacher: {', '.join(unread[:3])}")
    return _flat((s.teacher_logp for s in samples), "float32", size)


def _flat(parts: Iterable[Sequence[Any]], dtype: str, size: int) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), dtype=dtype, count=int(size))


def _value(sample: Sample) -> float:
    if not isinstance(sample.reward, Score):
        raise ValueError(f"{sample.name} has no score: {sample.reward}")
    return sample.reward.value
