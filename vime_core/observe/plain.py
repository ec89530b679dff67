"""One line a step, for logs and pipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from vime_core.observe.columns import COLUMNS, duration
from vime_core.observe.pace import Pace


class PlainProgress:
    """Writes to ``stream`` and flushes each line.

    The receipt of a sync goes into the line of its step; one that comes outside a step gets its own line.
    """

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._pace = Pace(now=now)
        self._receipt = ""

    def stage(self, name: str, total_steps: int | None, first: int = 0) -> None:
        self._receipt_alone()
        self._pace = Pace(name, total_steps, self._now)
        steps = "as many steps as it takes" if total_steps is None else f"{total_steps} steps"
        self._write(f"{name}: {steps}{f', resumed at step {first}' if first else ''}")

    def phase(self, name: str) -> None:
        """Not shown: a log has one line a step."""

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._pace.step(step)
        numbers = [f"{column.short} {column.text(metrics)}" for column in COLUMNS]
        parts = [f"{self._pace.name} {self._pace.position}".strip(), *numbers, f"left {duration(self._pace.left)}"]
        receipt, self._receipt = self._receipt, ""
        self._write("  ".join(parts) + (f"  sync {receipt}" if receipt else ""))

    def sync(self, line: str) -> None:
        self._receipt_alone()
        self._receipt = line

    def note(self, text: str) -> None:
        self._receipt_alone()
        self._write(text)

    def close(self) -> None:
        self._receipt_alone()

    def _receipt_alone(self) -> None:
        receipt, self._receipt = self._receipt, ""
        if receipt:
            self._write(f"sync {receipt}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()
