"""The likeliest tokens of the samples -> two response columns of the step batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vime_core.api.errors import EngineError
from vime_core.api.sample import Sample

if TYPE_CHECKING:
    import numpy.typing as npt


def top_columns(samples: Sequence[Sample]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """([R, k] ids, [R, k] log-probs) of every response token of every sample, end to end; 0 and NaN where the engine
    was not asked: at observations.

    Raises:
        EngineError: a token that is trained on has none, or the samples differ in k.
    """
    bare = [sample.name for sample in samples if _missing(sample)]
    if bare:
        raise EngineError(f"score centering: no likeliest tokens with {', '.join(bare[:3])} ({len(bare)} samples)")
    widths = sorted({sample.top.ids.shape[1] for sample in samples if sample.top is not None})
    if len(widths) != 1:
        raise EngineError(f"score centering: samples with {widths or 'no'} likeliest tokens a place")
    size = sum(len(sample.response_tokens) for sample in samples)
    ids, values = np.zeros((size, widths[0]), np.int32), np.full((size, widths[0]), np.nan, np.float32)
    start = 0
    for sample in samples:
        if sample.top is not None:
            part = slice(start, start + len(sample.top))
            ids[part], values[part] = sample.top.ids, sample.top.logprobs
        start += len(sample.response_tokens)
    return ids, values


def _missing(sample: Sample) -> bool:
    """A trained token without a finite table. A zero probability is one: -inf."""
    trained = [place for place, mask in enumerate(sample.loss_mask) if mask]
    if not trained:
        return False
    if sample.top is None or len(sample.top) <= trained[-1]:
        return True
    return bool(np.isnan(sample.top.logprobs[trained]).any())
