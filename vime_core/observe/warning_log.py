"""What the processes of a run warn of: in the run's ``warnings.jsonl`` and on the terminal at once.

Every process appends to the one file, so that a warning is there although its process, or the driver, is killed next.
The driver follows the file. A row is ``{time, process, kind, count, text, traceback}``: the first of a kind in a
process has count 1, and its traceback where an exception is behind it; later rows of the kind only say how often it
came.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vime_core.observe.lines import Lines
from vime_core.runtime import LOGGER

#: kinds of a process that are told apart
_KINDS = 50
#: seconds between looks at the file, and for the last look to end
_LOOK, _LAST = 0.5, 10.0


class WarningLog(logging.Handler):
    """Of one process, whose warnings it takes from :meth:`attach` to ``close``.

    Args:
        path: ``warnings.jsonl`` of the run.
        process: as users know it, e.g. "trainer rank 0".
    """

    def __init__(self, path: Path, process: str) -> None:
        super().__init__(logging.WARNING)
        self._lines, self._process = Lines(path), process
        self._counts: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._texts: dict[str, str] = {}

    @classmethod
    def attach(cls, path: Path, process: str) -> WarningLog:
        log = cls(path, process)
        logging.getLogger(LOGGER).addHandler(log)
        return log

    def emit(self, record: logging.LogRecord) -> None:
        kind = str(getattr(record, "kind", record.msg))
        if kind not in self._counts and len(self._counts) >= _KINDS:
            kind = "further kinds"  # reasons that a reward words anew for each sample are no kinds
        self._counts[kind] += 1
        self._texts[kind] = record.getMessage()
        if self._counts[kind] > 1:
            return
        error = record.exc_info[1] if record.exc_info else None
        more = {} if error is None else {"traceback": "".join(traceback.format_exception(error))}
        self._write(kind, more)

    def write_counts(self) -> None:
        """A row for each kind that came again since the last time; call it when a piece of work is done."""
        with self.lock or threading.Lock():
            for kind, count in self._counts.items():
                if count > self._written[kind]:
                    self._write(kind, {})

    def close(self) -> None:
        logging.getLogger(LOGGER).removeHandler(self)
        self.write_counts()
        super().close()

    def _write(self, kind: str, more: Mapping[str, Any]) -> None:
        count = self._written[kind] = self._counts[kind]
        row = {"time": time.time(), "process": self._process, "kind": kind, "count": count, "text": self._texts[kind]}
        with contextlib.suppress(OSError):  # a full disk: a warning is not worth the run, and others will say so
            self._lines.path.parent.mkdir(parents=True, exist_ok=True)  # another machine may not share the run folder
            self._lines.append({**row, **more})


class WarningView:
    """Of the driver: shows the first warning of each kind, of all processes, as it is written.

    Args:
        show: gets one line a kind; by default it goes to standard error.
    """

    def __init__(self, path: Path, show: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._show = show or _to_stderr
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._read = 0
        self._counts: dict[tuple[str, str], int] = {}
        self._kinds: set[str] = set()
        self._thread = threading.Thread(target=self._follow, name="vime-warnings", daemon=True)

    def __enter__(self) -> WarningView:
        self._own = WarningLog.attach(self.path, "driver")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.close()
        self._stop.set()
        self._thread.join(_LAST)
        self.look()

    def look(self) -> None:
        """Show what is new."""
        with self._lock:
            for row in self._new_rows():
                self._counts[row["process"], row["kind"]] = row["count"]
                if row["kind"] not in self._kinds:
                    self._kinds.add(row["kind"])
                    self._show(f"warning: {row['process']}: {row['text']}")

    def summary(self) -> str:
        """``3 kinds, 17 in all; see warnings.jsonl``; empty where there is none."""
        self._own.write_counts()
        self.look()
        kinds, count = len(self._kinds), sum(self._counts.values())
        return f"{kinds} kind{'s'[: kinds != 1]}, {count} in all; see {self.path.name}" if kinds else ""

    def _new_rows(self) -> list[dict[str, Any]]:
        """Whole lines behind those that were read."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:  # nobody warned of anything, or the folder is gone
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [row for line in whole.splitlines() for row in _parsed(line)]

    def _follow(self) -> None:
        while not self._stop.wait(_LOOK):
            self.look()


def _parsed(line: bytes) -> list[dict[str, Any]]:
    """Two machines that append to one file at once may tear a line; the rest is read all the same."""
    try:
        row = json.loads(line)
    except ValueError:
        return []
    return [row] if {"process", "kind", "count", "text"} <= row.keys() else []


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
