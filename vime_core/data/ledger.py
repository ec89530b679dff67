"""Where every group went. A group that was handed out is in flight, waits to be handed out again, or has ended exactly
once; the three add up to the number handed out, and a second end is a defect that raises at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any


class GroupOutcome(StrEnum):
    """How a group ends."""

    TRAINED = "trained"
    FILTERED = "filtered"
    UNSCORED = "unscored"
    FAILED = "failed"


class Ledger:
    """Counts of the whole run."""

    def __init__(self) -> None:
        self._issued = 0
        self._requeued = 0
        self._last = -1
        self._in_flight: set[int] = set()
        self._waiting: set[int] = set()
        self._ended: Counter[tuple[str, str]] = Counter()

    def start(self, group_ids: Iterable[int]) -> None:
        """The groups were handed out: for the first time, or again after :meth:`requeue`."""
        for id in group_ids:
            if id in self._waiting:
                self._waiting.remove(id)
            elif id > self._last:
                self._issued, self._last = self._issued + 1, id
            else:
                raise RuntimeError(f"group {id} was handed out twice")
            self._in_flight.add(id)

    def requeue(self, group_id: int) -> None:
        """The group went back to the buffer (aborted, to be sampled again, or finished beyond need)."""
        self._leave(group_id)
        self._waiting.add(group_id)
        self._requeued += 1

    def end(self, group_id: int, outcome: GroupOutcome, reason: str = "") -> None:
        """The group is done with. ``reason`` is kept up to its first colon, so that details do not split counts."""
        self._leave(group_id)
        self._ended[outcome.value, reason.split(":", 1)[0][:80]] += 1

    def _leave(self, group_id: int) -> None:
        if group_id not in self._in_flight:
            raise RuntimeError(f"group {group_id} ended, but it is not in flight")
        self._in_flight.remove(group_id)

    def check(self) -> None:
        """Raises:
        RuntimeError: a group was lost or counted twice.
        """
        accounted = sum(self._ended.values()) + len(self._in_flight) + len(self._waiting)
        if accounted != self._issued:
            raise RuntimeError(f"{self._issued} groups were handed out, {accounted} are accounted for: {self.line()}")

    def count(self, outcome: GroupOutcome) -> int:
        return sum(n for (kind, _), n in self._ended.items() if kind == outcome.value)

    def reasons(self, outcome: GroupOutcome) -> dict[str, int]:
        return {reason: n for (kind, reason), n in self._ended.items() if kind == outcome.value}

    def line(self) -> str:
        parts = [f"{kind}{f' ({reason})' if reason else ''} {n}" for (kind, reason), n in sorted(self._ended.items())]
        return ", ".join([*parts, f"in flight {len(self._in_flight)}", f"waiting {len(self._waiting)}"])

    def metrics(self) -> dict[str, float]:
        """Every group of the run has exactly one of these fates, so they add up to the number handed out."""
        fates = {outcome.value: self.count(outcome) for outcome in GroupOutcome}
        fates |= {"in_flight": len(self._in_flight), "waiting": len(self._waiting)}
        return {f"rollout/groups/{fate}": float(n) for fate, n in fates.items()}

    # state ---------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """JSON values. What is in flight now will wait after a resume, as the buffer hands it out again."""
        return {
            "issued": self._issued,
            "requeued": self._requeued,
            "last": self._last,
            "waiting": sorted(self._in_flight | self._waiting),
            "ended": [[kind, reason, n] for (kind, reason), n in self._ended.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._issued, self._requeued, self._last = state["issued"], state["requeued"], state["last"]
        self._in_flight, self._waiting = set(), set(state["waiting"])
        self._ended = Counter({(kind, reason): n for kind, reason, n in state["ended"]})
        self.check()
