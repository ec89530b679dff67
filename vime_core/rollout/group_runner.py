"""One group from pending to scored, and the gate before the engines.

Whatever a generator or an engine does wrong stays inside the group.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vime_core.api import (
    POSITIVE_LOGPROB,
    DeadlineError,
    EngineError,
    GenerateReply,
    GenerateRequest,
    GenerationClient,
    Group,
    PluginError,
    RolloutGenerator,
    Sample,
    SamplingParams,
    Score,
    Status,
    Unscored,
    VimeError,
)
from vime_core.plugin import BLAMABLE, describe, raised, short
from vime_core.rollout.owned_tasks import not_owned, owned_tasks
from vime_core.rollout.scoring import Scorer
from vime_core.rollout.teacher import TeacherScorer
from vime_core.rollout.trained_sampling import TrainedSampling


class Gate(GenerationClient):
    """The engines' client as generators see it. It may be there before its engines are (data is read and checked while
    they come up), and while it is shut nothing new reaches them: a generator that has several turns gets aborted
    replies at once instead of starting another one behind an abort.

    Attributes:
        in_flight: requests that run now, so that "nothing is running" can be checked.
    """

    def __init__(self, client: GenerationClient | None = None) -> None:
        self._client = client
        self._shut = False
        self.in_flight = 0

    def attach(self, client: GenerationClient) -> None:
        self._client = client

    def open(self) -> None:
        self._shut = False

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        if self._shut:
            return [GenerateReply(id, [], [], [], "abort") for id in request.ids]
        if self._client is None:
            raise EngineError("a generation was asked for, but the run has no engines, or they are not up yet")
        self.in_flight += 1
        try:
            with not_owned():
                return await self._client.generate(request)
        finally:
            self.in_flight -= 1

    async def abort(self) -> None:
        self._shut = True
        if self._client is not None and self.in_flight:
            await self._client.abort()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


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
        """Why none of the samples has a score; "" where one has: those without are then not there for the others."""
        if any(isinstance(sample.reward, Score) for sample in self.group.samples):
            return ""
        return next((s.reward.reason for s in self.group.samples if isinstance(s.reward, Unscored)), "")

    def __str__(self) -> str:
        return f"group {self.group.id} in {self.phase} for {time.monotonic() - self.since:.0f} s"


@dataclass(frozen=True)
class GroupRunner:
    """Generates and scores groups.

    Attributes:
        gate: the client of the engines.
        scorer: None where there is no reward.
        timeout: seconds for the generation of one group.
        teacher: asked for its log-probs of what was generated; None without distillation.
        trained: the samples are trained on, so that only the distribution of ``params`` may be sampled.
        source: the generator's plugin, for messages; "" is the core's.
    """

    generator: RolloutGenerator
    gate: Gate
    params: SamplingParams
    scorer: Scorer | None
    timeout: float
    teacher: TeacherScorer | None = None
    trained: bool = False
    source: str = ""

    @property
    def who(self) -> str:
        """The generator, as messages name it."""
        return f"{_name(self.generator)}{self.source}"

    async def run(self, in_flight: InFlightGroup) -> None:
        """Bring a group as far as it goes: finished and scored, aborted, or with an error. Raises if cancelled only."""
        try:
            if not in_flight.group.finished:  # else it was finished in an earlier step and kept
                await self._generate(in_flight)
            if in_flight.group.finished and not in_flight.error:
                await self._score(in_flight)
        except DeadlineError as error:
            in_flight.error, in_flight.may_retry = f"DeadlineError: {error}", False
        except PluginError as error:
            in_flight.error, in_flight.may_retry = str(error), False
        except VimeError as error:
            in_flight.error = describe(error)
        except BLAMABLE as error:  # sys.exit ends a group here, and not the worker
            file = getattr(sys.modules.get(type(self.generator).__module__), "__file__", None)
            in_flight.error = f"{raised(self.who, error, file)} ({self.who})"

    async def _score(self, in_flight: InFlightGroup) -> None:
        """Reward, then teacher: a group without a score is not worth the teacher's time."""
        if self.scorer is not None:
            in_flight.enter("reward")
            if any(sample.reward is None for sample in in_flight.group.samples):
                await self.scorer.score(in_flight.group.samples)
        if self.teacher is not None and not in_flight.unscored:
            in_flight.enter("teacher")
            try:
                await self.teacher.score(in_flight.group.samples)
            except EngineError as error:
                in_flight.error = f"teacher: {error}"

    async def _generate(self, in_flight: InFlightGroup) -> None:
        group = in_flight.group
        client = TrainedSampling(self.gate, self.params.temperature) if self.trained else self.gate
        try:
            async with owned_tasks(self.who), asyncio.timeout(self.timeout) as deadline:
                samples = await self._awaited(self.generator.generate(group.samples, client, self.params))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise DeadlineError(
                f"generation of group {group.id} took more than {self.timeout:g} s (--generate-timeout-secs); "
                "without the flag it is what the lengths need at a speed that no working engine is below"
            ) from error
        in_flight.error = group_violation(group, samples, self.generator, self.source)
        if not in_flight.error:
            in_flight.group = Group(group.id, list(samples))

    async def _awaited(self, answer: Any) -> Any:
        if not inspect.isawaitable(answer):
            raise PluginError(
                f"{self.who} returned {type(answer).__name__} and nothing to wait for: it must be 'async def', and "
                "return the list of finished samples"
            )
        return await answer


def _name(generator: RolloutGenerator) -> str:
    return f"{type(generator).__module__}.{type(generator).__qualname__}.generate"


def group_violation(asked: Group, returned: Any, generator: RolloutGenerator, source: str = "") -> str:
    """What is wrong with what a generator (of the plugin ``source``) returned for a group, or ""."""
    who = f"{_name(generator)}{source}"
    if not isinstance(returned, list | tuple) or not all(isinstance(sample, Sample) for sample in returned):
        kinds = sorted({type(x).__name__ for x in returned}) if isinstance(returned, list | tuple) else []
        what = f"a list of {' and '.join(kinds)}" if kinds else type(returned).__name__
        return f"{who} returned {what}: it must return the list of finished samples"
    problem = _identity_violation(asked, returned, generator)
    for sample in () if problem else returned:
        problem = _sample_violation(sample, trained=not generator.supervised)
        if problem:
            break
    return f"{problem} ({who})" if problem else ""


def _identity_violation(asked: Group, returned: Sequence[Sample], generator: RolloutGenerator) -> str:
    foreign = [s.name for s in returned if s.group != asked.id]
    if foreign:
        return f"samples of other groups: the generator returned {', '.join(foreign[:3])} for group {asked.id}"
    wanted, got = {s.rollout for s in asked.samples}, Counter(s.rollout for s in returned)
    if wanted != set(got):
        return (
            f"other rollouts: the generator was given rollouts {sorted(wanted)} and returned {sorted(got)}; copy the "
            "ids of the sample that each one came from"
        )
    if len({id(sample) for sample in returned}) != len(returned):
        return "twice the same: the generator returned one sample several times, which would be trained on as often"
    several = [rollout for rollout, count in got.items() if count > 1]
    if several and not generator.fans_out:
        return (
            f"more than was asked for: {got[several[0]]} samples of rollout {several[0]}; a generator that turns one "
            "into several says so: fans_out = True"
        )
    return ""


def _sample_violation(sample: Sample, trained: bool) -> str:
    if sample.status is Status.FAILED:
        return f"failed: {sample.name}: {sample.error or 'no error text'}"
    if sample.status is Status.PENDING:
        return f"pending: the generator returned {sample.name} unfinished"
    if len({len(sample.response_tokens), len(sample.loss_mask), len(sample.logprobs), len(sample.versions)}) != 1:
        return f"lengths: {sample.name} has streams of different lengths; grow them with append_model"
    strange = _strange_tokens(sample)
    if strange:
        return f"tokens: {sample.name} has {strange}"
    logprobs, mask = np.asarray(sample.logprobs, np.float64), np.asarray(sample.loss_mask, bool)
    wrong = np.flatnonzero(mask & ~(logprobs <= POSITIVE_LOGPROB))
    if trained and len(wrong):
        return (
            f"log-probs: {sample.name} has {logprobs[wrong[0]]} for response token {wrong[0]}, which is trained on; "
            "give the sampler's, or mask the token"
        )
    return ""


def _strange_tokens(sample: Sample) -> str:
    """Values that no token or mask can have; a mask of 0.5 would be 1 in the batch."""
    bounds = {"prompt_tokens": (0, None), "response_tokens": (0, None), "loss_mask": (0, 1), "versions": (-1, None)}
    for name, (least, most) in bounds.items():
        values = np.asarray(getattr(sample, name))
        if not len(values):
            continue
        if values.dtype.kind not in "iub" or values.ndim != 1:
            return f"{name} of {values.dtype} ({short(getattr(sample, name)[0])} first); whole numbers are expected"
        if values.min() < least or (most is not None and values.max() > most):
            return f"{name} from {values.min()} to {values.max()}"
    return ""
