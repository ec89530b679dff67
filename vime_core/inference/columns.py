"""Replies as columns: one object a call instead of thousands, which is what a Ray call costs by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.api import EngineError, GenerateReply, TokenStream, check_pairs

if TYPE_CHECKING:
    import numpy.typing as npt

FINISHES = ("stop", "length", "abort")


@dataclass(frozen=True)
class ReplyColumns:
    """n replies. ``tokens``, ``logprobs`` and ``versions`` [T] are end to end, reply i has ``lengths[i]`` of them.
    ``streams`` hold (rows of each reply, -1 for none; the rows end to end); ``errors`` are (request id, message) of
    those that got none."""

    ids: list[str]
    lengths: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    finishes: npt.NDArray[np.int8]
    cached: npt.NDArray[np.int32]
    streams: dict[TokenStream, tuple[npt.NDArray[np.int32], np.ndarray]] = field(default_factory=dict)
    errors: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def pack(cls, replies: Sequence[GenerateReply], errors: Sequence[tuple[str, str]] = ()) -> ReplyColumns:
        def flat(name: str, dtype: Any) -> Any:
            return np.array([x for r in replies for x in getattr(r, name)], dtype=dtype)

        known = dict.fromkeys(stream for r in replies for stream in r.streams)
        return cls(
            ids=[r.id for r in replies],
            lengths=np.array([len(r.tokens) for r in replies], np.int32),
            tokens=flat("tokens", np.int32),
            logprobs=flat("logprobs", np.float32),
            versions=flat("versions", np.int32),
            finishes=np.array([FINISHES.index(r.finish) for r in replies], np.int8),
            cached=np.array([r.cached_tokens for r in replies], np.int32),
            streams={stream: _end_to_end([r.streams.get(stream) for r in replies]) for stream in known},
            errors=list(errors),
        )

    def unpack(self) -> list[GenerateReply]:
        tokens, logprobs, versions = self.tokens.tolist(), self.logprobs.tolist(), self.versions.tolist()
        replies, start = [], 0
        streams: list[dict[TokenStream, np.ndarray]] = [{} for _ in self.ids]
        for stream, (counts, rows) in self.streams.items():
            ends = np.cumsum(np.maximum(counts, 0))
            for own, count, end in zip(streams, counts.tolist(), ends.tolist()):
                if count >= 0:
                    own[stream] = rows[end - count : end]
        for i, length in enumerate(self.lengths.tolist()):
            part = slice(start, start + length)
            finish = FINISHES[int(self.finishes[i])]
            parts = (tokens[part], logprobs[part], versions[part], finish, int(self.cached[i]), streams[i])
            replies.append(GenerateReply(self.ids[i], *parts))
            start += length
        return replies


def _end_to_end(parts: Sequence[np.ndarray | None]) -> tuple[npt.NDArray[np.int32], np.ndarray]:
    counts = np.array([-1 if rows is None else len(rows) for rows in parts], np.int32)
    return counts, np.concatenate([rows for rows in parts if rows is not None])


@dataclass(frozen=True)
class UncheckedReply:
    """A reply as an engine gave it: what it left out is None.

    Attributes:
        spans: (version, start, end) over the tokens.
    """

    id: str
    tokens: Sequence[int] | None
    logprobs: Sequence[float] | None
    spans: Sequence[tuple[str, int, int]] | None
    finish: str | None
    cached: int | None
    streams: Mapping[TokenStream, np.ndarray] = field(default_factory=dict)

    def checked(self) -> GenerateReply:
        """Raises EngineError where something that a trainer would have to invent is missing."""
        id, tokens, logprobs, finish = self.id, self.tokens, self.logprobs, self.finish
        if tokens is None or logprobs is None or (self.spans is None and len(tokens)):
            parts = {"token ids": tokens, "log-probs": logprobs, "weight versions": self.spans}
            absent = [name for name, value in parts.items() if value is None]
            raise EngineError(f"request {id}: the engine's reply has no {' and no '.join(absent)}")
        if finish not in FINISHES:
            wanted = f"not with one of {', '.join(FINISHES)}"
            raise EngineError(f"request {id}: the engine ended it with {finish!r}, {wanted}")
        versions = self._versions()
        if not len(tokens) == len(logprobs) == len(versions):
            counts = f"{len(tokens)} tokens, {len(logprobs)} log-probs, {len(versions)} weight versions"
            raise EngineError(f"request {id}: the engine's reply has {counts}")
        streams = _checked_streams(id, self.streams, len(tokens))
        return GenerateReply(id, list(tokens), list(logprobs), versions, finish, self.cached or 0, streams)

    def _versions(self) -> list[int]:
        versions: list[int] = []
        for version, start, end in self.spans or ():
            if start != len(versions):
                raise EngineError(f"request {self.id}: weight versions jump from token {len(versions)} to {start}")
            versions += [_number(version, self.id)] * (end - start)
        return versions


def _checked_streams(id: str, streams: Mapping[TokenStream, np.ndarray], count: int) -> dict[TokenStream, np.ndarray]:
    try:
        checked = {stream: stream.checked(rows) for stream, rows in streams.items()}
        check_pairs(checked)
    except ValueError as error:
        raise EngineError(f"request {id}: the engine's {error}") from error
    for stream, rows in checked.items():
        if stream.per == "response" and len(rows) != count:
            raise EngineError(f"request {id}: the {stream.what} of {len(rows)} positions came with {count} tokens")
    return checked


def _number(version: str, id: str) -> int:
    try:
        return int(version)
    except ValueError:
        raise EngineError(
            f"request {id}: weight version {version!r} is not a number; was this engine started or updated by another "
            "program?"
        ) from None
