"""What Ctrl-C and SIGTERM do to a run.

The first signal asks for a stop. It is raised as :class:`Interrupted` at the next safe point, :meth:`Interrupts.check`,
so that a checkpoint or a weight sync is never cut in two. A wait polls: it waits for a moment, checks, and waits again.
(A handler that raises by itself would do so anywhere, also inside code that swallows the exception; one in three such
stops was lost in Ray's wait.) The ``finally`` blocks of the run then end its processes.

The second signal does not wait for that: the process ends at once. Shells, ``timeout`` and process managers often
signal both a process and its group; signals that follow the first within ``grace`` seconds are therefore the same one.
Libraries that start processes (Ray does, for SIGTERM) put their own handlers in place; each safe point takes the
signals back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from vime_core.api import Interrupted
from vime_core.runtime.deadline import Deadline

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """``with Interrupts() as stop: ... stop.check() ...`` in the main thread; the old handlers come back at its end.
    One that is not entered hears no signal: the stop of a run that nobody stops.

    Args:
        last_resort: called by the second signal before the process ends, to kill what must not outlive it.
        announce: told in one line what a signal did; by default written to standard error.
        grace: seconds in which a further signal counts as the first one.
    """

    def __init__(
        self,
        last_resort: Callable[[], None] | None = None,
        announce: Callable[[str], None] | None = None,
        grace: float = 0.5,
    ) -> None:
        self._last_resort = last_resort
        self._announce = announce or _to_stderr
        self._grace = grace
        self._old: dict[int, Any] = {}
        self._signum: int | None = None
        self._at = 0.0

    def __enter__(self) -> Interrupts:
        self._old = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._old:
            signum, handler = self._old.popitem()
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)

    @property
    def requested(self) -> bool:
        """Whether a stop was asked for."""
        return self._signum is not None

    def check(self) -> None:
        """A safe point, in any thread.

        Raises:
            Interrupted: a stop was asked for.
        """
        if threading.current_thread() is threading.main_thread():
            self._take()
        if self._signum is not None:
            raise Interrupted(self._signum)

    def within(self, seconds: float) -> Deadline:
        """Of a wait that is given up when a stop was asked for."""
        return Deadline(seconds, self.check)

    def _take(self) -> None:
        for signum in _SIGNALS:
            if self._old and signal.getsignal(signum) != self._handle:
                signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._signum is None:
            self._first(signum)
        elif time.monotonic() - self._at >= self._grace:
            self._second(signum)

    def _first(self, signum: int) -> None:
        self._signum, self._at = signum, time.monotonic()
        self._announce(f"{signal.Signals(signum).name}: stopping; once more to exit at once")

    def _second(self, signum: int) -> NoReturn:
        try:
            self._announce(f"{signal.Signals(signum).name} again: exiting at once")
            if self._last_resort is not None:
                self._last_resort()
        finally:
            os._exit(128 + signum)


def _to_stderr(line: str) -> None:
    """Past Python's buffers, which the interrupted code may be holding."""
    with contextlib.suppress(OSError):  # nobody reads standard error any more; the stop itself must go on
        os.write(2, f"\n{line}\n".encode())
