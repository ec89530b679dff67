"""A deadline for code that this process calls and did not write."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from vime_core.api import DeadlineError


class _Overdue(BaseException):
    """Code that catches every Exception does not catch it; it is raised again each second all the same."""


@contextlib.contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """What runs inside is broken off after ``seconds``, where it stands. By the alarm signal, so that it stays in its
    thread; hence in the main thread only, where every process loads its plugins. Elsewhere nothing is limited: there
    the wait of the driver ends it.

    Raises:
        DeadlineError: it did not end; with the line where it stood as its cause.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    inside = True

    def ring(signum: int, frame: FrameType | None) -> None:
        if inside:
            raise _Overdue

    begun, old = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    except _Overdue as overdue:
        raise DeadlineError(f"{what} did not end within {seconds:g} s") from overdue
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, old)
        if left:  # somebody's own alarm goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begun), 1e-3), again)
