"""One engine's part of a sync: the same steps whether vLLM is in this process or behind HTTP."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime_core.api import EngineError, SyncError
from vime_core.weights import UpdateResult


@dataclass(frozen=True)
class Applied:
    """What an engine has after an update, agreed by all of its workers."""

    engine: str
    version: int
    digest: str
    names: int
    nbytes: int
    seconds: Mapping[str, float]


class UpdatableEngine(abc.ABC):
    """What an update asks of an engine, and the transaction over its workers: all of them receive, then all load.

    Attributes:
        weights_discarded: why the engine has no weights to serve with, as the end of a sentence that begins with its
            name; empty while it has.
        refuses: requests are refused and not left waiting, because no update is known to be on its way.
    """

    name: str
    weights_discarded = ""
    refuses = False
    _paused_by_discard = False

    @abc.abstractmethod
    async def is_paused(self) -> bool: ...

    @abc.abstractmethod
    async def pause(self) -> None:
        """No step from here on; running requests stay where they are."""

    @abc.abstractmethod
    async def resume(self) -> None: ...

    @abc.abstractmethod
    async def abort(self, ids: Sequence[str] | None = None) -> int:
        """End requests, all or those of ``ids``, with the tokens that they have."""

    @abc.abstractmethod
    async def worker_call(self, method: str, *arguments: str) -> list[str]:
        """Call a method of every worker; the answers by worker rank."""

    @abc.abstractmethod
    async def set_version(self, version: int) -> None:
        """Label the tokens sampled from here on."""

    @abc.abstractmethod
    async def drop_caches(self) -> None:
        """Forget keys and values; requests that go on compute theirs again."""

    @abc.abstractmethod
    async def shutdown(self, timeout: float = 10.0) -> None: ...

    def require_weights(self) -> None:
        """Raises EngineError where a request would be answered by weights that nobody has vouched for."""
        if self.refuses:
            raise EngineError(
                f"{self.name} {self.weights_discarded}: it refuses requests until a weight update passes; push the "
                "trainer's weights again, or end the run and resume from its last checkpoint"
            )

    async def receive(self, version: int, terms: Mapping[str, Any], rank_offset: int = 1) -> None:
        """Every worker meets the sender and, where the transport holds a whole version, takes and verifies all of it.

        Args:
            terms: where and with whom to meet.
            rank_offset: rank of this engine's first worker in the group.

        Raises:
            SyncError: a worker refused; the engine serves what it had.
        """
        results = await self._results("vime_receive", str(version), json.dumps(dict(terms)), str(rank_offset))
        if error := _first_error(results):
            raise SyncError(f"{self.name}: {error}; {await self._unchanged()}")

    async def load(self, version: int) -> Applied:
        """Every worker loads what was received, then the version moves.

        The engine is held meanwhile: a step between load and version would label its tokens with the wrong one.

        Raises:
            SyncError: a worker could not; the engine serves what it had if no worker had begun, nothing otherwise.
        """
        held = await self.is_paused() and not self._paused_by_discard
        if not held:
            await self.pause()
        try:
            results = await self._results("vime_load", str(version))
            error = _first_error(results)
            if not error:
                await self.drop_caches()
                await self.set_version(version)
        except BaseException:
            await self.shutdown()  # nobody knows what its weights are
            raise
        if error:
            raise SyncError(f"{self.name}: {error}; {await self._not_loaded(version, results, held)}")
        self.weights_discarded, self.refuses, self._paused_by_discard = "", False, False
        if not held:
            await self.resume()
        first = results[0]
        seconds = {key: max(result.seconds[key] for result in results) for key in first.seconds}
        return Applied(self.name, first.version, first.digest, first.names, first.nbytes, seconds)

    async def discard(self, version: int) -> bool:
        """``version`` does not count: what was received of it is forgotten, and where any of it was loaded the engine
        takes no step and refuses requests until an update passes. Whether it does."""
        results = await self._results("vime_discard", str(version))
        if any(result.loaded and result.version == version for result in results) and not self.refuses:
            await self._refuse(f"has loaded weights version {version}, which was not committed")
        return self.refuses

    async def _not_loaded(self, version: int, results: Sequence[UpdateResult], held: bool) -> str:
        if any(result.loaded for result in results):
            self._paused_by_discard = not held
            await self._refuse(f"has loaded weights version {version} in part")
            return "its weights are discarded, and it refuses requests until an update passes"
        if not held and not self.refuses:
            await self.resume()
        return await self._unchanged()

    async def _unchanged(self) -> str:
        if not self.weights_discarded:
            return "it serves the version it had"
        await self._refuse(self.weights_discarded)
        return f"it {self.weights_discarded}, and refuses requests until an update passes"

    async def _refuse(self, why: str) -> None:
        self.weights_discarded, self.refuses = why, True
        if not await self.is_paused():
            self._paused_by_discard = True
            await self.pause()
        await self.abort()  # what ran keeps its tokens; what waits would wait for ever

    async def _results(self, method: str, *arguments: str) -> list[UpdateResult]:
        return [UpdateResult(**json.loads(text)) for text in await self.worker_call(method, *arguments)]


def _first_error(results: Sequence[UpdateResult]) -> str:
    """The first reason why the update does not count; empty if all workers have it."""
    for rank, result in enumerate(results):
        if result.error:
            return (f"worker {rank}: " if len(results) > 1 else "") + result.error
    return ""
