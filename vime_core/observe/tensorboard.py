"""TensorBoard events, written with the tensorboard package alone: torch and TensorFlow stay out of the driver.

The package is looked for when a run starts (:func:`require_tensorboard`), so that its absence is a line before anything
is up and not a crash after the first step.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime_core.api import ConfigError
from vime_core.observe.catalog import axis_of


def require_tensorboard() -> None:
    """Check that events can be written.

    Raises:
        ConfigError: the package is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "TensorBoard events are on (--use-tensorboard), but the package tensorboard is not installed: "
            "run `pip install tensorboard`, or give --no-use-tensorboard"
        )


class TensorBoardWriter:
    """Scalars of one run. Each call is on disk when it returns."""

    def __init__(self, folder: Path) -> None:
        require_tensorboard()
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))
        self._open = True

    def scalars(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the numbers among ``metrics``.

        Args:
            step: position on the axis, unless ``metrics`` has the metric's own axis: ``train/`` is plotted against
                ``train/step`` and ``eval/`` against ``eval/step`` where those are given.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        by_axis: dict[int, list[Any]] = {}
        for name, value in metrics.items():
            if isinstance(value, int | float) or hasattr(value, "__float__"):
                at = _position(metrics.get(axis_of(name)), step)
                by_axis.setdefault(at, []).append(Summary.Value(tag=name, simple_value=float(value)))
        for at, values in by_axis.items():
            self._writer.add_event(Event(wall_time=time.time(), step=at, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._open:
            self._open = False
            self._writer.close()


def _position(own_axis: Any, step: int) -> int:
    return step if own_axis is None or not math.isfinite(own_axis) else int(own_axis)
