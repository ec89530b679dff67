"""Samples as they are in a run, for tests: a pending one, or one with a response whose token ids are its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vime_core.api import Sample, Status


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
