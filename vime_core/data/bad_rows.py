"""What becomes of a row that cannot be used: it ends the run, or it is counted and left out. Never silently dropped."""

from __future__ import annotations

import logging
from typing import Literal

from vime_core.api import DataError

_SHOWN = 5


class BadRows:
    """Takes every complaint about a row.

    Args:
        policy: "error" raises the first complaint; "skip" keeps count and the first few messages.
    """

    def __init__(self, policy: Literal["error", "skip"]) -> None:
        self._policy = policy
        self.count = 0
        self.first: list[str] = []

    def report(self, error: DataError) -> None:
        """Raises:
        DataError: the complaint itself, under "error".
        """
        if self._policy == "error":
            raise DataError(f"{error} (or leave such rows out: --on-bad-row skip)") from error
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(str(error))

    def summary(self) -> str:
        more = self.count - len(self.first)
        return "; ".join(self.first) + (f"; and {more} more" if more else "")

    def log(self) -> None:
        """One warning line, if any row was left out."""
        if self.count:
            logging.getLogger("vime.data").warning("%d bad rows left out: %s", self.count, self.summary())
