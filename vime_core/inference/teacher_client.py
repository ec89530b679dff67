"""How the rollout process reaches the teacher: plain data that becomes a client where it is used."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.api import EngineError, VimeError

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class TeacherClientSpec:
    """
    Attributes:
        actor: (name, namespace) of the teacher's Ray actor.
        log: the teacher's log file, for messages.
    """

    actor: tuple[str, str]
    log: str

    def connect(self) -> TeacherClient:
        """A client for the calling process.

        Raises:
            EngineError: the teacher's actor does not exist.
        """
        import ray

        name, namespace = self.actor
        try:
            return TeacherClient(ray.get_actor(name, namespace), self.log)
        except ValueError as error:
            raise EngineError(f"no teacher {name} in namespace {namespace}: {error}") from error


class TeacherClient:
    """Talks to one :class:`~vime_core.inference.teacher.TeacherEngine` actor."""

    def __init__(self, actor: Any, log: str) -> None:
        self.actor, self.log = actor, log
        self._process, self._calls = os.urandom(4).hex(), itertools.count()

    async def read(self, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> list[npt.NDArray[np.float32]]:
        """For each text the log-probs of text[start:], at the student's temperature. Whoever stops waiting for it (a
        deadline, the end of a step) leaves nothing running on the teacher.

        Raises:
            EngineError: a text could not be read, or the teacher is gone.
        """
        call = next(self._calls)
        ids = [f"{self._process}-{call}-{index}" for index in range(len(texts))]
        try:
            return await self.actor.read.remote(ids, [np.array(text, np.int32) for text in texts], list(starts))
        except asyncio.CancelledError:
            self.actor.abort.remote(ids)
            raise
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> EngineError:
        cause = getattr(error, "cause", None)
        if isinstance(cause, VimeError):
            return EngineError(str(cause))
        what = str(error).partition("\n")[0]
        return EngineError(f"its process did not answer: {type(error).__name__}: {what} (its log: {self.log})")
