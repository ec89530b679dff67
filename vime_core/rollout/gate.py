"""A gate before the engines. While it is shut nothing new reaches them: a generator that has several turns gets aborted
replies at once instead of starting another one behind an abort."""

from __future__ import annotations

from vime_core.api import GenerateReply, GenerateRequest, GenerationClient


class Gate(GenerationClient):
    """Wraps a client. Counts requests in flight, so that "nothing is running" can be checked."""

    def __init__(self, client: GenerationClient) -> None:
        self._client = client
        self._shut = False
        self.in_flight = 0

    def open(self) -> None:
        self._shut = False

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        if self._shut:
            return [GenerateReply(id, [], [], [], "abort") for id in request.ids]
        self.in_flight += 1
        try:
            return await self._client.generate(request)
        finally:
            self.in_flight -= 1

    async def abort(self) -> None:
        self._shut = True
        if self.in_flight:
            await self._client.abort()

    async def close(self) -> None:
        await self._client.close()
