"""Collects the groups of a step: keeps a bounded number in flight, filters and accounts for each, and leaves nothing
running behind it.

A dropped group makes room for exactly one other. What is finished beyond need goes back to the buffer as it is; what is
unfinished at the end is aborted and goes back to start afresh. A group that fails is sampled once more, then counted as
failed; the run ends only when too many of them do.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field

from vime_core.api import EngineError, Group, RewardError
from vime_core.config import Config
from vime_core.data import DataBuffer, GroupOutcome, Ledger
from vime_core.plugin import describe
from vime_core.rollout.filters import FilterError, GroupFilter
from vime_core.rollout.group_runner import GroupRunner, InFlightGroup
from vime_core.runtime import warn

#: seconds for an abort to be accepted, and then for the requests that it ended to return
_ABORT_SECS = 10.0


@dataclass(frozen=True)
class DroppedGroup:
    """A group that is not trained on, and why."""

    group: Group
    outcome: GroupOutcome
    reason: str


@dataclass
class Collected:
    """What a step collected. ``groups`` are those to train on, by id; ``dropped`` all others that ended."""

    step: int
    groups: list[Group] = field(default_factory=list)
    dropped: list[DroppedGroup] = field(default_factory=list)
    surplus: int = 0
    aborted: int = 0
    retried: int = 0

    @property
    def ended(self) -> int:
        return len(self.groups) + len(self.dropped)

    @property
    def failures(self) -> Counter[str]:
        """Reasons of the groups that came to nothing."""
        return self.reasons(GroupOutcome.FAILED, GroupOutcome.UNSCORED)

    def reasons(self, *outcomes: GroupOutcome) -> Counter[str]:
        return Counter(d.reason for d in self.dropped if d.outcome in outcomes)


@dataclass(frozen=True)
class Bounds:
    """Of :class:`RolloutDriver`, under their names in the configuration; ``stall`` seconds without a finished group are
    reported."""

    in_flight: int
    filter_rounds: int
    failure_ratio: float
    stall: float = 60.0

    @classmethod
    def of(cls, config: Config) -> Bounds:
        rollout = config.rollout
        size = rollout.rollout_batch_size or 0
        return cls(
            max(size, rollout.over_sampling_batch_size or 0),
            rollout.max_filter_rounds,
            rollout.rollout_max_failure_ratio,
        )


class RolloutDriver:
    """Turns a buffer's groups into those of a step.

    Args:
        keep: filter of scored groups; None keeps all.
    """

    def __init__(
        self,
        buffer: DataBuffer,
        ledger: Ledger,
        runner: GroupRunner,
        bounds: Bounds,
        keep: GroupFilter | None = None,
    ) -> None:
        self._buffer, self._ledger, self._runner = buffer, ledger, runner
        self._bounds, self._keep = bounds, keep
        self._in_flight: dict[asyncio.Task[None], InFlightGroup] = {}
        self._done: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self._retried: set[int] = set()

    async def collect(self, step: int, n_groups: int) -> Collected:
        """Exactly ``n_groups`` groups to train on.

        Raises:
            RewardError: too many groups unscored, or the filter dropped nearly everything.
            EngineError: too many groups failed.
        """
        result = Collected(step)
        self._done = asyncio.Queue()  # of this event loop
        self._runner.gate.open()
        try:
            while len(result.groups) < n_groups:
                self._refill(result, n_groups)
                for in_flight in await self._finished():
                    await self._account(result, in_flight, n_groups)
                self._check(result, n_groups)
        except BaseException:
            await self._drain(result)
            self._return_collected(result)
            raise
        await self._drain(result)
        result.groups.sort(key=lambda group: group.id)
        for group in result.groups:
            self._end(group, GroupOutcome.TRAINED)
        self._ledger.check()
        return result

    # in flight -----------------------------------------------------------------------------------------------
    def _refill(self, result: Collected, n_groups: int) -> None:
        room = max(self._bounds.in_flight, n_groups) - len(result.groups) - len(self._in_flight)
        if room <= 0:
            return
        groups = self._buffer.take(room)
        self._ledger.start(group.id for group in groups)
        for group in groups:
            in_flight = InFlightGroup(group)
            task = asyncio.create_task(self._runner.run(in_flight), name=f"group {group.id}")
            self._in_flight[task] = in_flight
            task.add_done_callback(self._done.put_nowait)

    async def _finished(self) -> list[InFlightGroup]:
        """All in flight that have ended, at least one, by group id. Reports what is awaited while none does."""
        first = None
        while first is None:
            try:
                first = await asyncio.wait_for(self._done.get(), self._bounds.stall)
            except TimeoutError:
                warn("no group finished", self.stall_report())
        tasks = [first]
        while not self._done.empty():
            tasks.append(self._done.get_nowait())
        running = [self._in_flight.pop(task) for task in tasks]
        for task, in_flight in zip(tasks, running):
            if task.cancelled():
                in_flight.error = "cancelled: the generator or the reward cancelled its own task"
            else:
                task.result()  # raises only for a defect of ours
        return sorted(running, key=lambda in_flight: in_flight.group.id)

    def stall_report(self) -> str:
        """What is awaited: how many groups in which phase, and the oldest."""
        running = sorted(self._in_flight.values(), key=lambda in_flight: in_flight.since)
        phases = Counter(in_flight.phase for in_flight in running)
        count = ", ".join(f"{n} groups in {phase}" for phase, n in phases.items())
        oldest = "; ".join(str(in_flight) for in_flight in running[:3])
        return (
            f"no group finished for {self._bounds.stall:g} s: waiting for {count} ({self._runner.gate.in_flight} "
            f"requests at the engines); oldest: {oldest}"
        )

    # ends ----------------------------------------------------------------------------------------------------
    async def _account(self, result: Collected, in_flight: InFlightGroup, n_groups: int) -> None:
        group = in_flight.group
        if in_flight.error:
            self._fail(result, in_flight)
        elif not group.finished:  # aborted by someone else: not its fault
            result.aborted += 1
            self._requeue(in_flight)
        elif in_flight.unscored:
            self._drop(result, group, GroupOutcome.UNSCORED, in_flight.unscored)
        elif len(result.groups) >= n_groups:
            result.surplus += 1
            self._requeue(in_flight)
        else:
            await self._apply_filter(result, group)

    async def _apply_filter(self, result: Collected, group: Group) -> None:
        try:
            keep, reason = (True, "") if self._keep is None else await self._keep(group)
        except FilterError as error:
            self._drop(result, group, GroupOutcome.FAILED, str(error))
            return
        if keep:
            result.groups.append(group)
        else:
            self._drop(result, group, GroupOutcome.FILTERED, reason or "dropped")

    def _fail(self, result: Collected, in_flight: InFlightGroup) -> None:
        if in_flight.may_retry and in_flight.group.id not in self._retried:
            self._retried.add(in_flight.group.id)
            result.retried += 1
            why = in_flight.error
            warn(f"sampled again: {kind_of(why)}", f"group {in_flight.group.id} is sampled again: {why}")
            self._requeue(in_flight, fresh=True)
        else:
            self._drop(result, in_flight.group, GroupOutcome.FAILED, in_flight.error)

    def _drop(self, result: Collected, group: Group, outcome: GroupOutcome, reason: str) -> None:
        result.dropped.append(DroppedGroup(group, outcome, reason))
        if outcome is not GroupOutcome.FILTERED:
            kind = f"{outcome.value}: {kind_of(reason)}"
            warn(kind, f"step {result.step}: group {group.id} dropped ({outcome.value}): {reason}")
        self._end(group, outcome, reason)

    def _end(self, group: Group, outcome: GroupOutcome, reason: str = "") -> None:
        self._ledger.end(group.id, outcome, reason)
        self._buffer.end(group.id)
        self._retried.discard(group.id)

    def _requeue(self, in_flight: InFlightGroup, fresh: bool = False) -> None:
        group = self._buffer.renew(in_flight.group.id) if fresh else in_flight.group
        self._ledger.requeue(group.id)
        self._buffer.put_back([group])

    # limits --------------------------------------------------------------------------------------------------
    def _check(self, result: Collected, n_groups: int) -> None:
        ended, bad = result.ended, result.failures
        if ended >= n_groups and bad.total() > self._bounds.failure_ratio * ended:
            failed = result.reasons(GroupOutcome.FAILED).total()
            kind = EngineError if failed * 2 > bad.total() else RewardError
            raise kind(
                f"step {result.step}: {bad.total()} of {ended} groups came to nothing ({failed} failed, "
                f"{bad.total() - failed} unscored; --rollout-max-failure-ratio {self._bounds.failure_ratio:g}): "
                f"{first_reasons(bad)}"
            )
        if len(result.groups) < n_groups and ended >= self._bounds.filter_rounds * n_groups:
            dropped = Counter(d.outcome.value for d in result.dropped)
            raise RewardError(
                f"step {result.step}: {ended} groups were sampled, {self._bounds.filter_rounds} times the batch of "
                f"{n_groups}, and {len(result.groups)} kept ({', '.join(f'{n} {k}' for k, n in dropped.items())}: "
                f"{first_reasons(result.reasons(*GroupOutcome))}); the reward hardly tells answers apart, or raise "
                "--max-filter-rounds"
            )

    async def _drain(self, result: Collected) -> None:
        """End everything in flight, so that no request and no task is left; what was on its way goes to the buffer."""
        if self._in_flight:
            await self._abort()
            await asyncio.wait(self._in_flight, timeout=_ABORT_SECS)
            late = [task for task in self._in_flight if not task.done()]
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        while not self._done.empty():
            self._done.get_nowait()
        running, self._in_flight = sorted(self._in_flight.values(), key=lambda f: -f.group.id), {}
        for in_flight in running:
            finished = in_flight.group.finished and not in_flight.error
            result.surplus += finished
            result.aborted += not finished
            self._requeue(in_flight, fresh=not finished)

    def _return_collected(self, result: Collected) -> None:
        """The step did not come to be: what it had collected belongs to the next one."""
        for group in sorted(result.groups, key=lambda group: -group.id):
            self._requeue(InFlightGroup(group))
        result.groups.clear()

    async def _abort(self) -> None:
        try:
            await asyncio.wait_for(self._runner.gate.abort(), _ABORT_SECS)
        except Exception as error:  # a dead engine cannot be told; its requests are cancelled instead
            warn("abort of running requests", f"abort of running requests: {describe(error)}")


def kind_of(reason: str) -> str:
    """What a reason has in common with others of its kind: the text before the first colon, without its numbers."""
    return re.sub(r"\d+", "#", reason.partition(":")[0])


def first_reasons(reasons: Counter[str], shown: int = 3) -> str:
    return "; ".join(f"{reason} ({n} times)" if n > 1 else reason for reason, n in reasons.most_common(shown))
