"""How a run shows that it is alive: a live view on a terminal, one plain line a step elsewhere, or nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TextIO


class Progress(Protocol):
    """Told what happens, by the driver's thread. No method raises for a missing metric."""

    def stage(self, name: str, total_steps: int | None, first: int = 0) -> None:
        """A stage (warm-up, GRPO, ...) of ``total_steps`` steps begins; None where the number is not known. One that is
        resumed goes on with step ``first``."""

    def phase(self, name: str) -> None:
        """What goes on from now on: "generate", "train", "sync", "eval", ..."""

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step is done. Steps count from 0."""

    def sync(self, line: str) -> None:
        """Weights arrived; ``line`` is the receipt's."""

    def note(self, text: str) -> None:
        """Something to be read once."""

    def close(self) -> None:
        """No more will be told. A second call does nothing."""


class NoProgress:
    """Shows nothing."""

    def stage(self, name: str, total_steps: int | None, first: int = 0) -> None: ...

    def phase(self, name: str) -> None: ...

    def step(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def sync(self, line: str) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def make_progress(kind: Literal["auto", "rich", "plain", "off"], stream: TextIO) -> Progress:
    """The view for ``kind``; "auto" is the live view when ``stream`` is a terminal that can move its cursor."""
    if kind == "off":
        return NoProgress()
    if kind == "rich" or (kind == "auto" and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"):
        from vime_core.observe.live import LiveProgress

        return LiveProgress.on(stream)
    from vime_core.observe.plain import PlainProgress

    return PlainProgress(stream)
