"""From the engine's thread to an event loop, and from vLLM's outputs to ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.api import ROUTING, EngineError, GenerateReply
from vime_core.inference.columns import UncheckedReply
from vime_core.inference.vllm.top_logprobs import split_flat

if TYPE_CHECKING:
    from vllm import RequestOutput


@dataclass(frozen=True)
class Failure:
    """A request that ended without a result."""

    id: str
    message: str


class ReceiveQueue:
    """Results of some requests, handed over once a step of the engine. Make it inside the event loop."""

    def __init__(self, convert: Callable[[str, RequestOutput], Any]) -> None:
        self._convert = convert
        self._here = asyncio.get_running_loop()
        self._parcels: asyncio.Queue[list[Any]] = asyncio.Queue()
        self._open: list[Any] = []

    def post(self, id: str, output: RequestOutput | EngineError) -> None:
        try:
            if isinstance(output, EngineError):
                raise output
            self._open.append(self._convert(id, output))
        except EngineError as error:
            self._open.append(Failure(id, str(error)))

    def flush(self) -> None:
        parcel, self._open = self._open, []
        self._here.call_soon_threadsafe(self._parcels.put_nowait, parcel)

    async def take(self) -> list[Any]:
        """What has arrived, at least one result or :class:`Failure`."""
        results = list(await self._parcels.get())
        while not self._parcels.empty():
            results += self._parcels.get_nowait()
        return results


def reply_from_output(id: str, output: RequestOutput) -> GenerateReply:
    """Raises EngineError where vLLM left something out."""
    choice = output.outputs[0]
    flat: Any = choice.logprobs
    logprobs, streams = (None, {}) if flat is None else split_flat(id, choice.token_ids, flat)
    if choice.routed_experts is not None:
        streams[ROUTING] = choice.routed_experts
    spans = None if choice.weight_versions is None else [(s.version, s.start, s.end) for s in choice.weight_versions]
    finish, cached = choice.finish_reason, output.num_cached_tokens
    return UncheckedReply(id, choice.token_ids, logprobs, spans, finish, cached, streams).checked()


def prompt_scores(engine: str, tokens: Sequence[int], prompt_logprobs: Any) -> list[float]:
    """Log-probs of tokens[1:] out of vLLM's ``prompt_logprobs``: [None, {token: Logprob, ...}, ...]."""
    if prompt_logprobs is None or len(prompt_logprobs) != len(tokens):
        raise EngineError(f"{engine} returned no log-probs of a prompt of {len(tokens)} tokens")
    return [float(entry[token].logprob) for token, entry in zip(tokens[1:], prompt_logprobs[1:])]
