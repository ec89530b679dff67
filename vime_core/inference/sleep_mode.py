"""An engine that gives its device memory up and takes it again: the same steps whether vLLM is here or behind HTTP.

    awake --sleep--> asleep --wake("weights")--> weights only --wake("kv_cache")--> awake

With its weights alone an engine can be updated, but cannot answer; requests that come meanwhile wait until it is awake.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Sequence
from typing import Literal

from vime_core.api import EngineError
from vime_core.inference.update import UpdatableEngine

Tag = Literal["weights", "kv_cache"]
#: what a sleeping engine takes again, in this order
TAGS: tuple[Tag, ...] = ("weights", "kv_cache")

#: seconds that answers already on their way may take to be gone, and how often to look
_DRAIN, _POLL = 10.0, 0.05


class SleepingEngine(UpdatableEngine):
    """vLLM's sleep mode, and the rules around it."""

    @abc.abstractmethod
    async def in_flight(self) -> int:
        """Requests that have no complete answer yet."""

    @abc.abstractmethod
    async def fall_asleep(self, level: int) -> None:
        """Give up keys and values, and weights: kept in host memory at level 1, dropped at level 2."""

    @abc.abstractmethod
    async def wake_part(self, tags: Sequence[Tag]) -> bool:
        """Take memory again; whether the engine is awake by that."""

    async def sleep(self, level: int) -> None:
        """Fall asleep, once nothing is in flight.

        Raises:
            EngineError: requests are still in flight; the engine stays awake.
        """
        await self._drained()
        await self.fall_asleep(level)
        if level == 2:
            self.weights_discarded = "slept at level 2 and has got no weights since"

    async def wake(self, tags: Sequence[Tag]) -> None:
        """Take the memory of ``tags`` again, weights first.

        Raises:
            EngineError: the engine has no weights to serve with, or is not in the state that it should be in.
        """
        complete = "kv_cache" in tags
        if complete and self.weights_discarded:
            raise EngineError(f"{self.name} {self.weights_discarded}: sync before it wakes")
        if await self.wake_part(tags) != complete:
            state = "still sleeps" if complete else "was not asleep"
            raise EngineError(f"{self.name}: woken with {', '.join(tags)}, it {state}; weights wake before kv_cache")

    async def _drained(self) -> None:
        end = time.monotonic() + _DRAIN
        while left := await self.in_flight():
            if time.monotonic() > end:
                raise EngineError(
                    f"{self.name} cannot sleep: {left} requests are in flight {_DRAIN:.0f} s after the last answer was "
                    "taken; wait for them, or abort them, first"
                )
            await asyncio.sleep(_POLL)
