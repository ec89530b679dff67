"""Samples as they are in a run, for tests: a pending one, one with a response of bytes as its tokens, or a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vime_core.api import Sample, Status

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


def make_sample(
    prompt: Any = "2+2=",
    *,
    label: Any = None,
    response: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rollout: int = 0,
) -> Sample:
    """One try at a prompt.

    Args:
        prompt: text, or chat messages.
        response: None gives a pending sample; else one token for each byte of its UTF-8, log-prob -0.5 each.
        rollout: id of the try; its group is ``rollout // 1000`` and its place there ``rollout % 1000``.
    """
    text = prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt)
    sample = Sample(
        prompt_id=rollout // 1000,
        group=rollout // 1000,
        rollout=rollout,
        index=rollout % 1000,
        prompt=prompt,
        prompt_tokens=list(text.encode()),
        label=label,
        metadata=dict(metadata or {}),
        source="test",
    )
    if response is not None:
        tokens = list(response.encode())
        sample.append_model(tokens, [-0.5] * len(tokens), [1] * len(tokens))
        sample.response, sample.status = response, Status.COMPLETED
    return sample


def small_batch(masks: Sequence[Sequence[int]], *, prompt: int = 1, **columns: Any) -> StepBatch:
    """A batch written down by its masks, one row a sample.

    Args:
        prompt: prompt tokens of every sample.
        columns: any of reward (default 0), group (default: all in one), rollout (default: each its own), truncated,
            and token columns as one flat list.
    """
    import numpy as np

    from vime_core.batch import StepBatch

    n, lengths = len(masks), [len(mask) for mask in masks]
    flat = [bool(m) for mask in masks for m in mask]
    defaults: dict[str, Any] = {
        "tokens": np.arange(sum(lengths) + n * prompt),
        "total_lengths": [k + prompt for k in lengths],
        "response_lengths": lengths,
        "mask": flat,
        "rollout_logp": np.full(len(flat), np.nan),
        "version": np.zeros(len(flat)),
        "reward": np.zeros(n),
        "group": np.zeros(n),
        "rollout": np.arange(n),
        "truncated": np.zeros(n),
    }
    return StepBatch.of(**{**defaults, **columns})
