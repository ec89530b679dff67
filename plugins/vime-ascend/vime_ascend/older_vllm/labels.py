"""A vLLM from before its outputs carried weight versions (0.23 is one) learns to label them.

The version changes only while an engine is held, so a request's tokens fall into spans: at each change every running
request notes how many tokens it has. After ``install`` such a vLLM's engines have ``set_weight_version`` and
``get_weight_version`` and its outputs ``weight_versions``, as later ones do by themselves; ``wake_up`` says whether the
engine is awake, and lets it take no step while a part of its memory still sleeps. What calls them does not know the
difference. Routes of a server are in ``routes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """Output tokens [start, end) were sampled by the weights of ``version``."""

    version: str
    start: int
    end: int


def spans(starts: Iterable[tuple[str, int]], length: int) -> list[Span]:
    """Of a request with ``length`` tokens, from (version, tokens it had when that began), in order of time."""
    marks = list(starts)
    ends = [start for _, start in marks[1:]] + [length]
    return [Span(version, start, end) for (version, start), end in zip(marks, ends) if end > start]


def install() -> None:
    """Changes classes of vLLM in this process; does nothing where they have weight versions already."""
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    engine, processor, state = _open(LLMEngine), _open(OutputProcessor), _open(RequestState)
    if hasattr(engine, "set_weight_version"):
        return
    processor.add_request = _starting(processor.add_request)
    state._new_completion_output = _labelling(state._new_completion_output)
    engine.set_weight_version = _setter
    engine.get_weight_version = _getter
    engine.wake_up = _answering(engine.wake_up)
    _open(EngineCore).wake_up = _wake_core


def set_version(processor: Any, version: str) -> None:
    """Tokens that ``processor``'s requests get from here on are of ``version``; no step may run meanwhile."""
    processor.vime_version = version
    for state in processor.request_states.values():
        state.vime_starts.append((version, len(state.detokenizer.output_token_ids)))


def get_version(processor: Any) -> str:
    return getattr(processor, "vime_version", "default")


def _open(cls: type) -> Any:
    """A class as something that may be assigned to."""
    return cls


def _starting(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, request, *args, **kwargs)
        state = self.request_states[request.request_id]
        if not hasattr(state, "vime_starts"):
            state.vime_starts = [(get_version(self), 0)]
        return result

    return add_request


def _labelling(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_completion_output(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        length = len(self.detokenizer.output_token_ids)
        output.weight_versions = spans(self.vime_starts, length) if output.finished() else None
        return output

    return new_completion_output


def _setter(self: Any, version: str) -> None:
    set_version(self.output_processor, version)


def _getter(self: Any) -> str:
    return get_version(self.output_processor)


def _wake_core(self: Any, tags: list[str] | None = None) -> None:
    """vLLM's own resumes the scheduler after any part: requests that wait would run without keys and values."""
    parts = None if tags is None else [tag for tag in tags if tag != "scheduling"]
    if parts is None or parts:
        self.model_executor.wake_up(parts)
    if not self.model_executor.is_sleeping:
        self.resume_scheduler()


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    def wake_up(self: Any, tags: list[str] | None = None) -> bool:
        original(self, tags)
        return not self.is_sleeping()

    return wake_up
