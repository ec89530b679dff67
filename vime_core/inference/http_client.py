"""The router transport: one HTTP request a continuation, token ids both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vime_core.api import ROUTING, EngineError, GenerateReply, GenerateRequest
from vime_core.inference.columns import UncheckedReply
from vime_core.inference.routing import routing_from_text
from vime_core.inference.vllm.sampling import vllm_sampling
from vime_core.inference.vllm.top_logprobs import top_from_content
from vime_core.runtime import http_session, warn

if TYPE_CHECKING:
    import aiohttp


#: the router's sticky policies look for it
SESSION_HEADER = "x-session-id"

#: seconds before the first repetition of a request; it doubles
_BACKOFF = 0.25


@dataclass(frozen=True)
class HttpClientSpec:
    """
    Attributes:
        router: URL of the router.
        engines: URL of every engine, for what must reach each of them.
        concurrency: requests in flight, all engines together.
        retries: times a request is sent again after a connection error.
        timeout: deadline of one generation, seconds.
        key: of the run, which router and engines ask for.
    """

    router: str
    engines: tuple[str, ...]
    concurrency: int
    retries: int
    timeout: float
    key: str = field(default="", repr=False)

    def connect(self) -> HttpClient:
        return HttpClient(self)


class HttpClient:
    """Generates through the router; aborts at every engine, since a router passes a call to one of them."""

    def __init__(self, spec: HttpClientSpec) -> None:
        import aiohttp

        self.spec = spec
        self._http: aiohttp.ClientSession = http_session(
            spec.key,
            connector=aiohttp.TCPConnector(limit=spec.concurrency),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        seeds = request.seeds or (None,) * len(request.ids)
        tasks = [asyncio.create_task(self._one(request, id, seed)) for id, seed in zip(request.ids, seeds)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()  # a disconnect ends the request on its engine

    async def abort(self) -> None:
        """Raises EngineError where an engine answers with an error; one that is gone has nothing to abort."""
        import aiohttp

        async def at(engine: str) -> str:
            try:
                async with asyncio.timeout(60), self._http.post(f"{engine}/abort_requests", json={}) as response:
                    return "" if response.status == 200 else f"{engine}: {response.status} {await response.text()}"
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                warn(f"abort: {engine}", f"abort: {engine} does not answer ({error})")
                return ""

        faults = [fault for fault in await asyncio.gather(*map(at, self.spec.engines)) if fault]
        if faults:
            raise EngineError(f"abort failed: {'; '.join(faults)}")

    async def close(self) -> None:
        await self._http.close()

    async def _one(self, request: GenerateRequest, id: str, seed: int | None) -> GenerateReply:
        body = {
            "request_id": id,
            "token_ids": list(request.tokens),
            "sampling_params": vllm_sampling(request.params, seed),
        }
        headers = {SESSION_HEADER: request.session} if request.session else {}
        try:
            async with asyncio.timeout(self.spec.timeout):
                return reply_from_json(id, await self._post(id, body, headers), request.params.top_logprobs)
        except TimeoutError:
            where = f"{self.spec.router} in {self.spec.timeout:.0f} s"
            raise EngineError(f"request {id}: no reply through {where}") from None

    async def _post(self, id: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        import aiohttp

        for attempt in range(self.spec.retries + 1):
            try:
                return await self._once(id, body, headers)
            except aiohttp.ClientConnectionError as error:
                if attempt == self.spec.retries:
                    what = f"{self.spec.router} cannot be reached, {attempt + 1} attempts"
                    raise EngineError(f"request {id}: {what}: {type(error).__name__}: {error}") from error
                await asyncio.sleep(_BACKOFF * 2**attempt)
            except aiohttp.ClientError as error:
                raise EngineError(f"request {id}: {self.spec.router}: {type(error).__name__}: {error}") from error
        raise AssertionError("unreachable")

    async def _once(self, id: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        url = f"{self.spec.router}/inference/v1/generate"
        async with self._http.post(url, json=body, headers=headers) as response:
            if response.status != 200:
                text = (await response.text())[:1000]
                raise EngineError(f"request {id}: {self.spec.router} answered {response.status}: {text}")
            return await response.json()


def reply_from_json(id: str, answer: Mapping[str, Any], top_logprobs: int = 0) -> GenerateReply:
    """The engine's answer, with the ``top_logprobs`` likeliest tokens of each position.

    Raises:
        EngineError: something is missing, or is not of these tokens.
    """
    choices = answer.get("choices") or []
    if len(choices) != 1:
        raise EngineError(f"request {id}: the engine's reply has {len(choices)} choices instead of one")
    choice = choices[0]
    content = (choice.get("logprobs") or {}).get("content")
    logprobs = None if content is None else [entry["logprob"] for entry in content]
    tokens = choice.get("token_ids")
    if content is not None and tokens is not None and [entry["token_id"] for entry in content] != tokens:
        raise EngineError(f"request {id}: the log-probs of the engine's reply are not those of its tokens")
    spans = choice.get("weight_versions")
    spans = None if spans is None else [(s["version"], s["start"], s["end"]) for s in spans]
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    streams = top_from_content(id, content or (), top_logprobs)
    if choice.get("routed_experts") is not None:
        streams[ROUTING] = routing_from_text(id, choice["routed_experts"])
    finish, cached = choice.get("finish_reason"), details.get("cached_tokens")
    return UncheckedReply(id, tokens, logprobs, spans, finish, cached, streams).checked()
