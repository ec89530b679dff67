"""Collects the groups of a step: keeps a bounded number in flight, filters and accounts for each, and leaves nothing
running behind it.

A dropped group makes room for exactly one other. What is finished beyond need goes back to the buffer as it is; what is
unfinished at the end is aborted and goes back to start afresh. A group that fails is tried once more, then counted as
failed; the run ends only when too many of them do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from vime_core.api import EngineError, Group, RewardError
from vime_core.config import Config
from vime_core.data import DataBuffer, Ledger, Outcome
from vime_core.rollout.error_source import describe
from vime_core.rollout.gate import Gate
from vime_core.rollout.group_runner import GroupRunner, InFlightGroup

Filter = Callable[[Group], "bool | tuple[bool, str]"]

#: seconds for an abort to be accepted, and then for what it ended to come home
_ABORT_SECS = 10.0
#: dropped groups of a step that get a line of their own; the counts and the error name the rest
_SHOWN = 3
_log = logging.getLogger("vime.rollout")


@dataclass(frozen=True)
class Dropped:
    """A group that is not trained on, and why."""

    group: Group
    outcome: Outcome
    reason: str


@dataclass
class Collected:
    """What a step collected. ``groups`` are those to train on, by id; ``dropped`` all others that ended."""

    step: int
    groups: list[Group] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    surplus: int = 0
    aborted: int = 0
    retried: int = 0

    @property
    def judged(self) -> int:
        return len(self.groups) + len(self.dropped)

    def reasons(self, *outcomes: Outcome) -> Counter[str]:
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
    """DeviceSharing a buffer into batches.

    Args:
        gate: the client that the player uses, behind a gate.
        keep: filter of scored groups: ``(group) -> keep`` or ``(keep, reason)``; None keeps all.
    """

    def __init__(
        self,
        buffer: DataBuffer,
        ledger: Ledger,
        player: GroupRunner,
        gate: Gate,
        bounds: Bounds,
        keep: Filter | None = None,
    ) -> None:
        self._buffer, self._ledger, self._player, self._gate = buffer, ledger, player, gate
        self._bounds, self._keep = bounds, keep
        self._flights: dict[asyncio.Task[None], InFlightGroup] = {}
        self._landed: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self._tried: set[int] = set()

    async def collect(self, step: int, n_groups: int) -> Collected:
        """Exactly ``n_groups`` groups to train on.

        Raises:
            RewardError: too many groups unscored, or the filter dropped nearly everything.
            EngineError: too many groups failed.
        """
        result = Collected(step)
        self._landed = asyncio.Queue()  # of this event loop
        self._gate.open()
        try:
            while len(result.groups) < n_groups:
                self._refill(result, n_groups)
                for flight in await self._land():
                    self._settle(result, flight, n_groups)
                self._check(result, n_groups)
        except BaseException:
            await self._bring_home(result)
            self._take_back(result)
            raise
        await self._bring_home(result)
        result.groups.sort(key=lambda group: group.id)
        for group in result.groups:
            self._end(group, Outcome.TRAINED)
        self._ledger.check()
        return result

    # in flight -----------------------------------------------------------------------------------------------
    def _refill(self, result: Collected, n_groups: int) -> None:
        room = max(self._bounds.in_flight, n_groups) - len(result.groups) - len(self._flights)
        if room <= 0:
            return
        groups = self._buffer.take(room)
        self._ledger.start(groups)
        for group in groups:
            flight = InFlightGroup(group)
            task = asyncio.create_task(self._player.play(flight), name=f"group {group.id}")
            self._flights[task] = flight
            task.add_done_callback(self._landed.put_nowait)

    async def _land(self) -> list[InFlightGroup]:
        """All flights that have ended, at least one, by group id. Reports what is awaited while none does."""
        first = None
        while first is None:
            try:
                first = await asyncio.wait_for(self._landed.get(), self._bounds.stall)
            except TimeoutError:
                _log.warning("%s", self.stall_report())
        tasks = [first]
        while not self._landed.empty():
            tasks.append(self._landed.get_nowait())
        flights = [self._flights.pop(task) for task in tasks]
        for task, flight in zip(tasks, flights):
            if task.cancelled():
                flight.error = "cancelled: the generator or the reward cancelled its own task"
            else:
                task.result()  # raises only for a defect of ours
        return sorted(flights, key=lambda flight: flight.group.id)

    def stall_report(self) -> str:
        """What is awaited: how many groups in which phase, and the oldest."""
        flights = sorted(self._flights.values(), key=lambda flight: flight.since)
        phases = Counter(flight.phase for flight in flights)
        count = ", ".join(f"{n} groups in {phase}" for phase, n in phases.items())
        oldest = "; ".join(str(flight) for flight in flights[:3])
        return (
            f"no group finished for {self._bounds.stall:g} s: waiting for {count} ({self._gate.in_flight} requests at "
            f"the engines); oldest: {oldest}"
        )

    # ends ----------------------------------------------------------------------------------------------------
    def _settle(self, result: Collected, flight: InFlightGroup, n_groups: int) -> None:
        group = flight.group
        if flight.error:
            self._fail(result, flight)
        elif not group.finished:  # aborted by someone else: not its fault
            result.aborted += 1
            self._requeue(flight)
        elif flight.unscored:
            self._drop(result, group, Outcome.UNSCORED, flight.unscored)
        elif len(result.groups) >= n_groups:
            result.surplus += 1
            self._requeue(flight)
        else:
            self._sift(result, group)

    def _sift(self, result: Collected, group: Group) -> None:
        try:
            answer = (True, "") if self._keep is None else self._keep(group)
        except Exception as error:
            self._drop(result, group, Outcome.FAILED, f"filter raised {type(error).__name__}: {describe(error)}")
            return
        keep, reason = answer if isinstance(answer, tuple) else (answer, "")
        if keep:
            result.groups.append(group)
        else:
            self._drop(result, group, Outcome.FILTERED, reason or "dropped")

    def _fail(self, result: Collected, flight: InFlightGroup) -> None:
        if flight.may_retry and flight.group.id not in self._tried:
            self._tried.add(flight.group.id)
            result.retried += 1
            _log.warning("group %d is tried again: %s", flight.group.id, flight.error)
            self._requeue(flight, fresh=True)
        else:
            self._drop(result, flight.group, Outcome.FAILED, flight.error)

    def _drop(self, result: Collected, group: Group, outcome: Outcome, reason: str) -> None:
        result.dropped.append(Dropped(group, outcome, reason))
        if outcome is not Outcome.FILTERED and result.reasons(Outcome.FAILED, Outcome.UNSCORED).total() <= _SHOWN:
            _log.warning("group %d dropped (%s): %s", group.id, outcome.value, reason)
        self._end(group, outcome, reason)

    def _end(self, group: Group, outcome: Outcome, reason: str = "") -> None:
        self._ledger.end(group.id, outcome, reason)
        self._buffer.end(group.id)
        self._tried.discard(group.id)

    def _requeue(self, flight: InFlightGroup, fresh: bool = False) -> None:
        group = self._buffer.renew(flight.group.id) if fresh else flight.group
        self._ledger.requeue(group.id)
        self._buffer.put_back([group])

    # limits --------------------------------------------------------------------------------------------------
    def _check(self, result: Collected, n_groups: int) -> None:
        judged, bad = result.judged, result.reasons(Outcome.FAILED, Outcome.UNSCORED)
        if judged >= n_groups and bad.total() > self._bounds.failure_ratio * judged:
            failed = result.reasons(Outcome.FAILED).total()
            kind = EngineError if failed * 2 > bad.total() else RewardError
            raise kind(
                f"step {result.step}: {bad.total()} of {judged} groups came to nothing ({failed} failed, "
                f"{bad.total() - failed} unscored; --rollout-max-failure-ratio {self._bounds.failure_ratio:g}): "
                f"{first_reasons(bad)}"
            )
        if len(result.groups) < n_groups and judged >= self._bounds.filter_rounds * n_groups:
            dropped = Counter(d.outcome.value for d in result.dropped)
            raise RewardError(
                f"step {result.step}: {judged} groups were sampled, {self._bounds.filter_rounds} times the batch of "
                f"{n_groups}, and {len(result.groups)} kept ({', '.join(f'{n} {k}' for k, n in dropped.items())}: "
                f"{first_reasons(result.reasons(*Outcome))}); the reward hardly tells answers apart, or raise "
                "--max-filter-rounds"
            )

    async def _bring_home(self, result: Collected) -> None:
        """End everything in flight, so that no request and no task is left; what was on its way goes to the buffer."""
        if self._flights:
            await self._abort()
            await asyncio.wait(self._flights, timeout=_ABORT_SECS)
            late = [task for task in self._flights if not task.done()]
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        while not self._landed.empty():
            self._landed.get_nowait()
        flights, self._flights = sorted(self._flights.values(), key=lambda f: -f.group.id), {}
        for flight in flights:
            finished = flight.group.finished and not flight.error
            result.surplus += finished
            result.aborted += not finished
            self._requeue(flight, fresh=not finished)

    def _take_back(self, result: Collected) -> None:
        """The step did not come to be: what it had collected belongs to the next one."""
        for group in sorted(result.groups, key=lambda group: -group.id):
            self._requeue(InFlightGroup(group))
        result.groups.clear()

    async def _abort(self) -> None:
        try:
            await asyncio.wait_for(self._gate.abort(), _ABORT_SECS)
        except Exception as error:  # a dead engine cannot be told; its requests are cancelled instead
            _log.warning("abort of running requests: %s", describe(error))


def first_reasons(reasons: Counter[str], shown: int = 3) -> str:
    return "; ".join(f"{reason} ({n} times)" if n > 1 else reason for reason, n in reasons.most_common(shown))
