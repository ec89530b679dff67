"""The experts of the samples -> one token column of the step batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vime_core.api.errors import EngineError
from vime_core.api.sample import Sample
from vime_core.batch.routing import FREE_CHOICE

if TYPE_CHECKING:
    import numpy.typing as npt


def routing_column(samples: Sequence[Sample]) -> npt.NDArray[np.int16]:
    """[T, layers, topk]: experts of every token of every sample, end to end; FREE_CHOICE where the engine routed none:
    at a sample's last token, and at observations after the last token that is trained on, which nothing trained sees.

    Raises:
        EngineError: a sample lacks the experts of a token that its loss depends on, or they are of another shape.
    """
    faults = [fault for sample in samples if (fault := _fault(sample))]
    if faults:
        raise EngineError(f"routing replay: {'; '.join(faults[:3])} ({len(faults)} of {len(samples)} samples)")
    routed = [sample.routing for sample in samples if sample.routing is not None]
    shapes = sorted({rows.shape[1:] for rows in routed})
    if len(shapes) != 1:
        raise EngineError(f"routing replay: the samples have routed experts of layers and top-k {shapes or 'none'}")
    column = np.full((sum(len(sample.tokens) for sample in samples), *shapes[0]), FREE_CHOICE, np.int16)
    start = 0
    for sample in samples:
        if sample.routing is not None:
            column[start : start + len(sample.routing)] = sample.routing
        start += len(sample.prompt_tokens) + len(sample.response_tokens)
    return column


def _fault(sample: Sample) -> str:
    """What is missing, or empty."""
    trained = max((place for place, mask in enumerate(sample.loss_mask) if mask), default=None)
    if trained is None:
        return ""
    needed = len(sample.prompt_tokens) + trained  # the token that it is predicted from, and all before
    have = 0 if sample.routing is None else len(sample.routing)
    if have >= needed:
        return ""
    return f"{sample.name} has routed experts of {have} tokens and needs those of {needed}"
