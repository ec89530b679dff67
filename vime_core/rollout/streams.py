"""The per-token streams of a run: which its samples carry, and each as a column of the step batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vime_core.api import (
    ROUTING,
    TEACHER_LOGP,
    TOP_IDS,
    TOP_LOGP,
    EngineError,
    RolloutGenerator,
    Sample,
    TokenStream,
)

if TYPE_CHECKING:
    from vime_core.batch import Axis
    from vime_core.config import Config


def streams_of(config: Config, generator: type[RolloutGenerator]) -> tuple[TokenStream, ...]:
    """The streams that samples of a run carry: the core's where a flag asks for them, and those of the rollout itself.
    Each becomes a column of the step batch."""
    wanted = {
        TEACHER_LOGP: bool(config.teacher_engine),
        ROUTING: config.train.use_rollout_routing_replay,
        TOP_IDS: config.algorithm.use_score_centering,
        TOP_LOGP: config.algorithm.use_score_centering,
    }
    asked = [stream for stream, is_wanted in wanted.items() if is_wanted]
    return tuple(dict.fromkeys([*asked, *generator.streams]))


def stream_column(stream: TokenStream, samples: Sequence[Sample]) -> tuple[Axis, np.ndarray]:
    """(axis, values of every sample end to end). The declaration's ``fill`` stands where no value came: at observations
    and, on the token axis, at a sample's last token and after the last token that is trained on, which nothing trained
    sees.

    Raises:
        EngineError: a sample lacks what its loss depends on, or samples differ in the trailing dimensions.
    """
    errors = [error for sample in samples if (error := _missing(stream, sample))]
    if errors:
        more = f"{'; '.join(errors[:3])} ({len(errors)} of {len(samples)} samples)"
        raise EngineError(f"{stream.purpose}: {more}")
    shapes = sorted({sample.streams[stream].shape[1:] for sample in samples if stream in sample.streams})
    if len(shapes) > 1 or (stream.dims and not shapes):
        what = f"{stream.what} of {' and '.join(stream.dims)}"
        raise EngineError(f"{stream.purpose}: the samples have {what} {shapes or 'none'}")
    per_token = stream.per == "position"
    lengths = [len(s.response_tokens) + (len(s.prompt_tokens) if per_token else 0) for s in samples]
    column, start = stream.blank(sum(lengths), shapes[0] if shapes else ()), 0
    for sample, length in zip(samples, lengths):
        rows = sample.streams.get(stream)
        if rows is not None:
            column[start : start + len(rows)] = rows
        start += length
    return "token" if per_token else "response", column


def _missing(stream: TokenStream, sample: Sample) -> str:
    """What is missing, or empty. A log-prob of -inf is a value; NaN is none."""
    trained = [position for position, mask in enumerate(sample.loss_mask) if mask]
    if not trained:
        return ""
    # per position: the token that the last trained one is predicted from, and all before
    needed = trained[-1] + (1 if stream.per == "response" else len(sample.prompt_tokens))
    rows = sample.streams.get(stream)
    have = 0 if rows is None else len(rows)
    if have < needed or rows is None:
        return f"{sample.name} has {stream.what} of {have} tokens and needs those of {needed}"
    if stream.per == "response" and rows.dtype.kind == "f" and np.isnan(rows[trained]).any():
        return f"{sample.name} has {stream.what} that are not a number"
    return ""
