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
    index: int = 0,
    group: int = 0,
    status: Status = Status.COMPLETED,
    version: int = 1,
) -> Sample:
    """One try at a prompt, number ``index`` of its group.

    Args:
        prompt: text, or chat messages.
        response: None gives a pending sample; else one token for each byte of its UTF-8, log-prob -0.5 each.
        status: of a finished one.
    """
    text = prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt)
    sample = Sample(
        prompt_id=group,
        group=group,
        rollout=1000 * group + index,
        index=index,
        prompt=prompt,
        prompt_tokens=list(text.encode()),
        label=label,
        metadata=dict(metadata or {}),
        source="test",
    )
    if response is not None:
        tokens = list(response.encode())
        sample.append_model(tokens, [-0.5] * len(tokens), [version] * len(tokens))
        sample.response, sample.status = response, status
    return sample
