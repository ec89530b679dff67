"""One engine's part of a sync: the same steps whether vLLM is in this process or behind HTTP."""

from __future__ import annotations

import abc
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from vime_core.api import EngineError, SyncError

Outcome = Mapping[str, Any]
T = TypeVar("T")


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
    """What an update asks of an engine, and the transaction over its workers."""

    name: str
    #: it has given its weights up, and serves nothing until an update brings others
    hollow = False

    @abc.abstractmethod
    async def is_paused(self) -> bool: ...

    @abc.abstractmethod
    async def pause(self) -> None:
        """No step from here on; running requests stay where they are."""

    @abc.abstractmethod
    async def resume(self) -> None: ...

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

    async def apply(self, manifest: Mapping[str, Any], rank_offset: int = 1) -> Applied:
        """Check and load the manifest's weights on every worker, then move the version.

        The engine is held meanwhile: a step between load and version would label its tokens with the wrong one.

        Args:
            manifest: on the wire (``Manifest.to_wire``).
            rank_offset: rank of this engine's first worker in a collective transfer.

        Raises:
            SyncError: a worker refused; the engine serves what it had.
            EngineError: it could not even go back, and has ended itself.
        """
        return await self._held(lambda: self._apply(manifest, rank_offset))

    async def rollback(self, version: int, former: int) -> None:
        """Undo ``version`` where it was loaded, and serve as ``former`` again.

        Raises:
            EngineError: the former weights are gone; the engine has ended itself.
        """
        await self._held(lambda: self._take_back(version, former))

    async def _apply(self, manifest: Mapping[str, Any], rank_offset: int) -> Applied:
        outcomes = await self._outcomes("vime_update", json.dumps(dict(manifest)), str(rank_offset))
        fault = _fault(outcomes, manifest["digest"])
        if fault:
            _require_clean(self.name, await self._outcomes("vime_rollback", str(manifest["version"])))
            if self.hollow:
                raise EngineError(f"{self.name}: {fault}; it slept at level 2 and has no weights to go back to")
            raise SyncError(f"{self.name}: {fault}; it serves the version it had")
        self.hollow = False
        await self.drop_caches()
        await self.set_version(manifest["version"])
        first = outcomes[0]
        seconds = {key: max(o["seconds"][key] for o in outcomes) for key in first["seconds"]}
        return Applied(self.name, first["version"], first["digest"], first["names"], first["nbytes"], seconds)

    async def _take_back(self, version: int, former: int) -> None:
        _require_clean(self.name, await self._outcomes("vime_rollback", str(version)))
        await self.drop_caches()
        await self.set_version(former)

    async def _held(self, work: Callable[[], Awaitable[T]]) -> T:
        already = await self.is_paused()
        if not already:
            await self.pause()
        refused: SyncError | None = None
        try:
            result = await work()
        except SyncError as error:
            refused = error
        except BaseException:
            await self.shutdown()  # nobody knows what its weights are
            raise
        if not already:
            await self.resume()
        if refused is not None:
            raise refused
        return result

    async def _outcomes(self, method: str, *arguments: str) -> list[Outcome]:
        return [json.loads(text) for text in await self.worker_call(method, *arguments)]


def _fault(outcomes: Sequence[Outcome], digest: str) -> str:
    """The first reason why the update does not count; empty if all workers loaded the sender's bytes. A manifest that
    only announces has no digest; whoever sent it compares what the workers have."""
    for rank, outcome in enumerate(outcomes):
        where = f"worker {rank}: " if len(outcomes) > 1 else ""
        if outcome["refused"]:
            return where + outcome["refused"]
        if digest and outcome["digest"] != digest:
            return f"{where}loaded bytes with digest {outcome['digest']}, the sender's have {digest}"
    return ""


def _require_clean(name: str, outcomes: Sequence[Outcome]) -> None:
    dirty = [outcome["refused"] for outcome in outcomes if outcome["dirty"]]
    if dirty:
        raise EngineError(f"{name} is left with damaged weights ({dirty[0]}) and must not serve: restart it")
