"""A generation client that is there before its engines are: data is read and checked while they come up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.api import EngineError

if TYPE_CHECKING:
    from vime_core.api import GenerateReply, GenerateRequest, GenerationClient


class LateClient:
    """Hands everything on to the client that :meth:`attach` gives it."""

    def __init__(self) -> None:
        self._client: GenerationClient | None = None

    def attach(self, client: GenerationClient) -> None:
        self._client = client

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        return await self._ready().generate(request)

    async def abort(self) -> None:
        await self._ready().abort()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _ready(self) -> GenerationClient:
        if self._client is None:
            raise EngineError("a generation was asked for before the engines were up")
        return self._client
