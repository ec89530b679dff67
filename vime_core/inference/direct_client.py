"""The direct transport: requests of one turn of the event loop travel in one Ray call, replies stream back by steps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from vime_core.api import EngineError, GenerateReply, GenerateRequest
from vime_core.runtime import as_raised


@dataclass(frozen=True)
class DirectClientSpec:
    """
    Attributes:
        actor: (name, namespace) of the engine's Ray actor.
        timeout: deadline of one generation, seconds.
    """

    actor: tuple[str, str]
    timeout: float

    def connect(self) -> DirectClient:
        import ray

        name, namespace = self.actor
        try:
            return DirectClient(ray.get_actor(name, namespace), self.timeout)
        except ValueError as error:
            raise EngineError(f"no engine actor {name} in namespace {namespace}: {error}") from error


class DirectClient:
    """Talks to one :class:`~vime_core.inference.direct.DirectEngine` actor."""

    def __init__(self, actor: Any, timeout: float) -> None:
        self.actor, self.timeout = actor, timeout
        self._outgoing: list[GenerateRequest] = []
        self._waiting: dict[str, asyncio.Future[GenerateReply]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        here = asyncio.get_running_loop()
        futures = [here.create_future() for _ in request.ids]
        self._waiting.update(zip(request.ids, futures))
        if not self._outgoing:
            here.call_soon(self._send_outgoing)
        self._outgoing.append(request)
        try:
            async with asyncio.timeout(self.timeout):
                return list(await asyncio.gather(*futures))
        except TimeoutError:
            raise EngineError(f"request {request.ids[0]}: no reply from the engine in {self.timeout:.0f} s") from None
        finally:
            await self._forget(request)

    async def abort(self) -> None:
        await self.actor.abort.remote()

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _forget(self, request: GenerateRequest) -> None:
        """What nobody waits for any more must not keep the engine busy."""
        futures = {id: future for id in request.ids if (future := self._waiting.pop(id, None)) is not None}
        unfinished = [id for id, future in futures.items() if not future.done() or future.cancelled()]
        if unfinished:
            self.actor.abort.remote(unfinished)

    def _send_outgoing(self) -> None:
        batch, self._outgoing = self._outgoing, []
        call = asyncio.get_running_loop().create_task(self._send(batch))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _send(self, batch: list[GenerateRequest]) -> None:
        try:
            async for reference in self.actor.generate.options(num_returns="streaming").remote(batch):
                self._receive(await reference)
        except Exception as error:
            self._fail(batch, str(as_raised(error, "the engine", EngineError)))
        else:
            self._fail(batch, "the engine ended the call without a reply to it")

    def _receive(self, columns: Any) -> None:
        for reply in columns.unpack():
            self._settle(reply.id, reply)
        for id, message in columns.errors:
            self._settle(id, EngineError(message))

    def _settle(self, id: str, result: GenerateReply | EngineError) -> None:
        future = self._waiting.get(id)
        if future is None or future.done():
            return  # given up meanwhile
        if isinstance(result, EngineError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _fail(self, batch: list[GenerateRequest], why: str) -> None:
        for request in batch:
            for id in request.ids:
                self._settle(id, EngineError(f"request {id}: {why}"))
