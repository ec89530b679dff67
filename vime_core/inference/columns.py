"""Replies as columns: one object a call instead of thousands, which is what a Ray call costs by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.api.errors import EngineError
from vime_core.api.rollout import GenerateReply, TopLogprobs
from vime_core.inference.routing import checked_routing
from vime_core.inference.vllm.top_logprobs import end_to_end

if TYPE_CHECKING:
    import numpy.typing as npt

FINISHES = ("stop", "length", "abort")


@dataclass(frozen=True)
class ReplyColumns:
    """n replies. ``tokens``, ``logprobs`` and ``versions`` [T] are end to end, reply i has ``lengths[i]`` of them.
    ``top`` holds the likeliest tokens of the same T places, if they were asked for;
    ``routing`` [rows, layers, topk] holds the routed experts end to end, reply i has ``routed[i]`` rows (0: none);
    ``errors`` are (request id, message) of those that got none."""

    ids: list[str]
    lengths: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    finishes: npt.NDArray[np.int8]
    cached: npt.NDArray[np.int32]
    routed: npt.NDArray[np.int32]
    routing: npt.NDArray[np.integer] | None = None
    top: TopLogprobs | None = None
    errors: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def pack(cls, replies: Sequence[GenerateReply], errors: Sequence[tuple[str, str]] = ()) -> ReplyColumns:
        def flat(name: str, dtype: Any) -> Any:
            return np.array([x for r in replies for x in getattr(r, name)], dtype=dtype)

        routing = [r.routing for r in replies if r.routing is not None]
        tops = [r.top for r in replies if r.top is not None]
        return cls(
            ids=[r.id for r in replies],
            lengths=np.array([len(r.tokens) for r in replies], np.int32),
            tokens=flat("tokens", np.int32),
            logprobs=flat("logprobs", np.float32),
            versions=flat("versions", np.int32),
            finishes=np.array([FINISHES.index(r.finish) for r in replies], np.int8),
            cached=np.array([r.cached_tokens for r in replies], np.int32),
            routed=np.array([0 if r.routing is None else len(r.routing) for r in replies], np.int32),
            routing=np.concatenate(routing) if routing else None,
            top=end_to_end(tops) if tops else None,
            errors=list(errors),
        )

    def unpack(self) -> list[GenerateReply]:
        tokens, logprobs, versions = self.tokens.tolist(), self.logprobs.tolist(), self.versions.tolist()
        replies, start, row = [], 0, 0
        for i, length in enumerate(self.lengths.tolist()):
            part = slice(start, start + length)
            finish = FINISHES[int(self.finishes[i])]
            rows = int(self.routed[i])
            routing = self.routing[row : row + rows] if self.routing is not None and rows else None
            replies.append(
                GenerateReply(
                    self.ids[i],
                    tokens[part],
                    logprobs[part],
                    versions[part],
                    finish,
                    int(self.cached[i]),
                    routing,
                    None if self.top is None else self.top[part],
                )
            )
            start, row = start + length, row + rows
        return replies


def checked_reply(
    id: str,
    tokens: Any,
    logprobs: Any,
    spans: Any,
    finish: str | None,
    cached: int | None,
    routing: npt.NDArray[np.integer] | None = None,
    top: TopLogprobs | None = None,
) -> GenerateReply:
    """A reply from what an engine said.

    Args:
        spans: (version, start, end) over the tokens.

    Raises:
        EngineError: something a trainer would have to invent is missing.
    """
    if tokens is None or logprobs is None or (spans is None and len(tokens)):
        parts = {"token ids": tokens, "log-probs": logprobs, "weight versions": spans}
        absent = [name for name, value in parts.items() if value is None]
        raise EngineError(f"request {id}: the engine's reply has no {' and no '.join(absent)}")
    if finish not in FINISHES:
        raise EngineError(f"request {id}: the engine ended it with {finish!r}, not with one of {', '.join(FINISHES)}")
    versions: list[int] = []
    for version, start, end in spans or ():
        if start != len(versions):
            raise EngineError(f"request {id}: weight versions jump from token {len(versions)} to {start}")
        versions += [_number(version, id)] * (end - start)
    if not len(tokens) == len(logprobs) == len(versions):
        counts = f"{len(tokens)} tokens, {len(logprobs)} log-probs, {len(versions)} weight versions"
        raise EngineError(f"request {id}: the engine's reply has {counts}")
    if top is not None and len(top) != len(tokens):
        raise EngineError(f"request {id}: the likeliest tokens of {len(top)} places came with {len(tokens)} tokens")
    routing = checked_routing(id, routing)
    return GenerateReply(id, list(tokens), list(logprobs), versions, finish, cached or 0, routing, top)


def _number(version: str, id: str) -> int:
    try:
        return int(version)
    except ValueError:
        raise EngineError(
            f"request {id}: weight version {version!r} is not a number; was this engine started or updated by another "
            "program?"
        ) from None
