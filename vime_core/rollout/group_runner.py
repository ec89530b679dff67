"""One group from pending to scored. Whatever a generator or an engine does wrong stays inside the group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from vime_core.api import (
    DeadlineError,
    EngineError,
    GenerationClient,
    Group,
    RolloutGenerator,
    Sample,
    SamplingParams,
    Status,
    Unscored,
)
from vime_core.rollout.error_source import describe
from vime_core.rollout.scoring import Scorer
from vime_core.rollout.teacher import TeacherScorer


@dataclass
class InFlightGroup:
    """A group under way. ``group`` is replaced by the finished one; ``error`` says why there is none."""

    group: Group
    phase: str = "generation"
    since: float = field(default_factory=time.monotonic)
    error: str = ""
    may_retry: bool = True

    def enter(self, phase: str) -> None:
        self.phase, self.since = phase, time.monotonic()

    @property
    def unscored(self) -> str:
        """Reason of the first sample without a score, or "" if all have one."""
        return next((s.reward.reason for s in self.group.samples if isinstance(s.reward, Unscored)), "")

    def __str__(self) -> str:
        return f"group {self.group.id} in {self.phase} for {time.monotonic() - self.since:.0f} s"


class GroupRunner:
    """Generates and scores groups.

    Args:
        scorer: None where there is no reward.
        timeout: seconds for the generation of one group.
        teacher: asked for its log-probs of what was generated; None without distillation.
    """

    def __init__(
        self,
        generator: RolloutGenerator,
        client: GenerationClient,
        params: SamplingParams,
        scorer: Scorer | None,
        timeout: float,
        teacher: TeacherScorer | None = None,
    ) -> None:
        self._generator, self._client, self._params = generator, client, params
        self._scorer, self._timeout, self._teacher = scorer, timeout, teacher

    async def play(self, flight: InFlightGroup) -> None:
        """Bring a group as far as it goes: finished and scored, aborted, or with an error. Raises if cancelled only."""
        try:
            if not flight.group.finished:  # else it was finished in an earlier step and kept
                await self._generate(flight)
            if flight.group.finished and not flight.error:
                await self._judge(flight)
        except DeadlineError as error:
            flight.error, flight.may_retry = f"DeadlineError: {error}", False
        except Exception as error:
            flight.error = describe(error)

    async def _judge(self, flight: InFlightGroup) -> None:
        """Reward, then teacher: a group without a score is not worth the teacher's time."""
        if self._scorer is not None:
            flight.enter("reward")
            if any(sample.reward is None for sample in flight.group.samples):
                await self._scorer.score(flight.group.samples)
        if self._teacher is not None and not flight.unscored:
            flight.enter("teacher")
            try:
                await self._teacher.score(flight.group.samples)
            except EngineError as error:
                flight.error = f"teacher: {error}"

    async def _generate(self, flight: InFlightGroup) -> None:
        group = flight.group
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                samples = await self._generator.generate(group.samples, self._client, self._params)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise DeadlineError(
                f"generation of group {group.id} took more than {self._timeout:g} s (--generate-timeout-secs)"
            ) from error
        flight.error = complaint(group, samples)
        if not flight.error:
            flight.group = Group(group.id, list(samples))


def complaint(asked: Group, returned: Sequence[Sample]) -> str:
    """What is wrong with the samples that a generator returned for a group, or ""."""
    strangers = [s.name for s in returned if s.group != asked.id]
    if strangers:
        return f"samples of other groups: the generator returned {', '.join(strangers[:3])} for group {asked.id}"
    wanted, got = {s.rollout for s in asked.samples}, {s.rollout for s in returned}
    if wanted != got:
        return (
            f"other rollouts: the generator was given rollouts {sorted(wanted)} and returned {sorted(got)}; copy the "
            "ids of the sample that each one came from"
        )
    for sample in returned:
        if sample.status is Status.FAILED:
            return f"failed: {sample.name}: {sample.error or 'no error text'}"
        if sample.status is Status.PENDING:
            return f"pending: the generator returned {sample.name} unfinished"
        if len({len(sample.response_tokens), len(sample.loss_mask), len(sample.logprobs), len(sample.versions)}) != 1:
            return f"lengths: {sample.name} has streams of different lengths; grow them with append_model"
    return ""
