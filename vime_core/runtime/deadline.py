"""How long a wait may take, and whether the run was asked to stop meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """A moment ``seconds`` from now. ``stop.within(600)`` makes one of a run that can be stopped; ``Deadline(60)``
    itself is for what has to be done although the run stops.

    Args:
        check: raises when the run was asked to stop.
    """

    def __init__(self, seconds: float, check: Callable[[], None] | None = None) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._check = check

    def left(self) -> float:
        """Seconds until then; 0 afterwards."""
        return max(self._end - time.monotonic(), 0.0)

    def expired(self) -> bool:
        return not self.left()

    def check(self) -> None:
        """Every wait calls it now and then.

        Raises:
            Interrupted: the run was asked to stop.
        """
        if self._check is not None:
            self._check()
