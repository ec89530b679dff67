"""The likeliest tokens of an engine's replies, the same from both transports: the k best by the engine's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.api import TOP_IDS, TOP_LOGP, EngineError, TokenStream

if TYPE_CHECKING:
    from vllm.logprobs import FlatLogprobs

Streams = dict[TokenStream, np.ndarray]


def split_flat(id: str, tokens: Sequence[int], flat: FlatLogprobs) -> tuple[list[float], Streams]:
    """(log-probs of the sampled tokens [L], the likeliest, if asked for) of vLLM's flat list, where each place has the
    sampled token first and then the likeliest in order, the sampled one among them or not.

    Raises:
        EngineError: the places differ in their number of entries.
    """
    length, entries = len(tokens), len(flat.logprobs)
    if entries == length:
        return list(flat.logprobs), {}
    if length == 0 or entries % length or entries // length < 3:
        raise EngineError(f"request {id}: {entries} log-probs for {length} tokens are no table")
    ids = np.array(flat.token_ids, np.int32).reshape(length, -1)
    values = np.array(flat.logprobs, np.float32).reshape(length, -1)
    # the last of them is the one more that was asked for
    return values[:, 0].tolist(), {TOP_IDS: ids[:, 1:-1], TOP_LOGP: values[:, 1:-1]}


def top_from_content(id: str, content: Sequence[Mapping[str, Any]], asked: int) -> Streams:
    """Of the server's list of places.

    Args:
        asked: how many were wanted, k.

    Raises:
        EngineError: a place has fewer.
    """
    if not asked:
        return {}
    rows = [sorted((-e["logprob"], e["token_id"]) for e in place["top_logprobs"])[:asked] for place in content]
    short = [place for place, row in enumerate(rows) if len(row) < asked]
    if short:
        raise EngineError(f"request {id}: place {short[0]} has {len(rows[short[0]])} likeliest tokens, not {asked}")
    table = np.array(rows, np.float64).reshape(len(rows), asked, 2)
    return {TOP_IDS: table[..., 1].astype(np.int32), TOP_LOGP: -table[..., 0].astype(np.float32)}
