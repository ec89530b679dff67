"""The teacher's log-probs of what the student sampled, for on-policy distillation: asked for once a group is finished.

The teacher reads prompt and response as they are, token ids in; what is kept are its log-probs of the tokens that were
sampled. A log-prob that the teacher does not give is an error of the group and never a number.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from vime_core.api import TEACHER_LOGP, DeadlineError, EngineError, Sample
from vime_core.data import generation_deadline

if TYPE_CHECKING:
    from vime_core.config import Config


class Teacher(Protocol):
    """Whoever knows how likely another model finds given tokens, at the temperature that they were sampled at."""

    async def read(self, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> Sequence[Any]:
        """For each text [T] the T - start log-probs of text[start:], each given all tokens before it.

        Raises:
            EngineError: one of them could not be read.
        """


class TeacherScorer:
    """Fills in the stream ``teacher_logp`` of samples.

    Args:
        timeout: seconds for the samples of one group.
        groups: groups that the teacher is given at a time.
    """

    def __init__(self, timeout: float, groups: int) -> None:
        self._timeout = timeout
        self._teacher: Teacher | None = None
        self._turns = asyncio.Semaphore(groups)
        self._asked, self._since, self._seconds = 0, 0.0, 0.0

    @classmethod
    def of(cls, config: Config) -> TeacherScorer:
        groups = config.engine.vllm_server_concurrency // config.rollout.n_samples_per_prompt
        return cls(generation_deadline(config), max(1, groups))

    def attach(self, teacher: Teacher) -> None:
        """The data is read and checked while the teacher starts; from here on it can be asked."""
        self._teacher = teacher

    def take_seconds(self) -> float:
        """Wall time during which at least one group was waiting for the teacher, since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    async def score(self, samples: Sequence[Sample]) -> None:
        """Set ``teacher_logp`` of those that have none yet.

        Raises:
            EngineError: the teacher could not read a sample, or said less than it was asked.
            DeadlineError: no answer in time.
        """
        waiting = [sample for sample in samples if not sample.has_stream(TEACHER_LOGP)]
        if not waiting:
            return
        self._enter()
        try:
            async with asyncio.timeout(self._timeout) as deadline, self._turns:
                await self._ask(waiting)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise DeadlineError(
                f"the teacher took more than {self._timeout:g} s for group {samples[0].group} (--generate-timeout-secs)"
            ) from error
        finally:
            self._leave()

    async def _ask(self, samples: Sequence[Sample]) -> None:
        if self._teacher is None:
            raise EngineError("the teacher was asked before it was up")
        starts = [len(sample.prompt_tokens) for sample in samples]
        scores = await self._teacher.read([sample.tokens for sample in samples], starts)
        for sample, given in zip(samples, scores, strict=True):
            try:
                sample.set_stream(TEACHER_LOGP, [float(score) for score in given])
            except ValueError as error:
                raise EngineError(str(error)) from error

    def _enter(self) -> None:
        if not self._asked:
            self._since = time.monotonic()
        self._asked += 1

    def _leave(self) -> None:
        self._asked -= 1
        if not self._asked:
            self._seconds += time.monotonic() - self._since
