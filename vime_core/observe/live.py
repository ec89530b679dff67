"""The view on a terminal: where the run is, the numbers people look at first, the last receipt, the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vime_core.observe.columns import COLUMNS, MISSING, duration
from vime_core.observe.pace import Pace

#: a phase as a user would say it
_DOING = {
    "generate": "generating",
    "log_probs": "computing log-probs",
    "train": "training",
    "sync": "syncing weights",
    "offload": "handing the devices over",
    "eval": "evaluating",
    "save": "saving a checkpoint",
    "other": "working",
}


class LiveProgress:
    """Redraws in place twice a second; notes scroll by above.

    Args:
        console: where to draw.
        now: monotonic seconds.
        auto_refresh: redraw from a thread; off, it is drawn when something happens.
    """

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic, auto_refresh: bool = True) -> None:
        self._now = now
        self._pace = Pace(now=now)
        self._metrics: Mapping[str, Any] = {}
        self._receipt = MISSING
        self._doing, self._since = "starting", now()
        self._live = Live(console=console, get_renderable=self._view, auto_refresh=auto_refresh, refresh_per_second=2)
        self._live.start(refresh=True)

    @classmethod
    def on(cls, stream: TextIO) -> LiveProgress:
        return cls(Console(file=stream))

    def stage(self, name: str, total_steps: int | None, first: int = 0) -> None:
        self._pace = Pace(name, total_steps, self._now)
        self._metrics = {}
        self.refresh()

    def phase(self, name: str) -> None:
        self._doing, self._since = _DOING.get(name, name), self._now()
        self.refresh()

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._pace.step(step)
        self._metrics = dict(metrics)
        self.refresh()

    def sync(self, line: str) -> None:
        self._receipt = line
        self.refresh()

    def refresh(self) -> None:
        """Draw now."""
        self._live.refresh()

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last picture standing and give the terminal back."""
        if self._live.is_started:
            self._doing = "done"
            self._live.stop()

    # the picture ---------------------------------------------------------------------------------------------
    def _view(self) -> RenderableType:
        pace = self._pace
        head = Table.grid(expand=True)
        head.add_column()
        head.add_column(justify="right")
        head.add_row(Text(pace.position), Text(f"{duration(pace.elapsed)} gone, {duration(pace.left)} left"))
        parts: list[RenderableType] = [head]
        if pace.total:
            bar = Table.grid(expand=True)  # a bar alone does not end its line
            bar.add_row(ProgressBar(total=pace.total, completed=0 if pace.last is None else pace.last + 1))
            parts.append(bar)
        parts += [self._numbers(), Text(f"sync  {self._receipt}"), Text(self._activity(), style="dim")]
        return Panel(Group(*parts), title=Text(f"vime {pace.name}".strip()), title_align="left")

    def _numbers(self) -> Table:
        """Two pairs of label and value a row."""
        table = Table.grid(padding=(0, 2))
        cells = [(Text(c.label, style="dim"), Text(c.text(self._metrics))) for c in COLUMNS]
        for left, right in zip(cells[::2], [*cells[1::2], (Text(), Text())], strict=False):
            table.add_row(*left, *right)
        return table

    def _activity(self) -> str:
        if self._doing == "done":
            return self._doing
        return f"{self._doing} for {duration(self._now() - self._since)}"
