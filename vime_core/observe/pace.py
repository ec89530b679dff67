"""How far a stage is and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """Counts the steps of one stage.

    Args:
        name: of the stage.
        total: steps of the stage, or None.
        now: monotonic seconds.
    """

    def __init__(self, name: str = "", total: int | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.total = total
        self.last: int | None = None
        self._now = now
        self._begun = now()
        self._done = 0

    def step(self, step: int) -> None:
        """Step ``step`` (from 0; a resumed run starts later) is done."""
        self.last = step
        self._done += 1

    @property
    def elapsed(self) -> float:
        return self._now() - self._begun

    @property
    def left(self) -> float | None:
        """Seconds to the end of the stage at the mean pace so far; None before the first step or without a total."""
        if self.total is None or self.last is None:
            return None
        return max(0, self.total - self.last - 1) * self.elapsed / self._done

    @property
    def position(self) -> str:
        """``step 12 (13/100)``, ``step 12``, or ``step -`` before the first."""
        step = "-" if self.last is None else str(self.last)
        done = 0 if self.last is None else self.last + 1
        return f"step {step}" if self.total is None else f"step {step} ({done}/{self.total})"
