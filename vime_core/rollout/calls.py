"""Blocking calls, in threads, with a deadline for each.

A thread takes a run of items at a time, so that cheap calls cost one hop a run and not one a call. Python cannot end a
thread: one whose call is past its deadline is given up (it is a daemon and ends when the call does), its item has
failed, and the rest of the run goes to another thread. So that threads do not pile up without end, no call is begun
while too many given up ones still run.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

#: a run of items may take about this long before the hop costs nothing beside it
_RUN_SECS = 0.005
#: calls past their deadline that may still run, at least
_LOST = 16


class _Run:
    """Items of one hop. The lock settles who is first: the thread with a result, or the loop with a deadline."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function, self.items = function, items
        self.results: list[Any] = []
        self.busy = 0.0
        self.began: float | None = None
        self._given_up = False
        self._loop = loop
        self._lock = threading.Lock()
        self.finished: asyncio.Future[None] = loop.create_future()

    def play(self) -> bool:
        """In the thread. Returns whether the thread is still wanted."""
        for item in self.items:
            with self._lock:
                if self._given_up:
                    return self.began is None  # given up before it began: the thread is as good as new
                self.began = time.monotonic()
            try:
                result = self.function(item)
            except (Exception, SystemExit) as error:  # sys.exit ends a call here, and not the thread
                result = error
            with self._lock:
                if self._given_up:
                    return False
                self.results.append(result)
                self.busy += time.monotonic() - self.began
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            self._loop.call_soon_threadsafe(self._finish)
        return True

    def give_up(self, after: float) -> bool:
        """Unless the call that runs now began less than ``after`` seconds ago. Returns whether a thread is lost."""
        with self._lock:
            late = self.began is None or time.monotonic() - self.began >= after
            if self._given_up or len(self.results) == len(self.items) or not late:
                return False
            self._given_up = True
            return self.began is not None

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)


class Refused(RuntimeError):
    """A call that was not begun."""


class CallPool:
    """At most ``workers`` calls at a time, each with ``deadline`` seconds.

    Args:
        name: what is called, for messages.
    """

    def __init__(self, workers: int, deadline: float, name: str) -> None:
        self._workers, self._deadline, self._name = workers, deadline, name
        self._most_lost = max(_LOST, workers)
        self._lost, self._lock = 0, threading.Lock()
        self._runs: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()
        self._threads = 0
        self._mean: float | None = None

    async def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Results in order. A call that raised or ran too long gives the exception (``TimeoutError``) instead, and so
        does one that is not begun (:class:`Refused`)."""
        size = self._run_length()
        runs = [items[start : start + size] for start in range(0, len(items), size)]
        parts = await asyncio.gather(*(self._run(function, run) for run in runs))
        return [result for part in parts for result in part]

    def close(self) -> None:
        for _ in range(self._threads):
            self._runs.put(None)
        self._threads = 0

    def _run_length(self) -> int:
        """One call a hop until the cost of a call is known, then as many as fill a few milliseconds."""
        return 1 if self._mean is None else max(1, min(256, int(_RUN_SECS / max(self._mean, 1e-6))))

    async def _run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        while len(results) < len(items):
            if self._lost >= self._most_lost:
                return results + [self._refusal()] * (len(items) - len(results))
            run = _Run(function, items[len(results) :], asyncio.get_running_loop())
            self._start(run)
            results += await self._watch(run)
            self._learn(run.busy / max(1, len(run.results)))
        return results

    async def _watch(self, run: _Run) -> list[Any]:
        """All results of a run, or those up to and including the call that ran too long."""
        try:
            while not run.finished.done():
                left = self._deadline if run.began is None else run.began + self._deadline - time.monotonic()
                await asyncio.wait([run.finished], timeout=max(0.001, left))
                if not run.finished.done() and run.began is not None and run.give_up(self._deadline):
                    self._replace()
                    return [*run.results, TimeoutError(f"no result in {self._deadline:g} s")]
                if not run.finished.done() and run.began is None and self._lost >= self._most_lost:
                    if run.give_up(0.0):  # it has just begun
                        self._replace()
                    return [*run.results, self._refusal()]
            return run.results
        except asyncio.CancelledError:
            if run.give_up(0.0):
                self._replace()
            raise

    def _start(self, run: _Run) -> None:
        self._runs.put(run)
        if self._threads < self._workers:
            self._threads += 1
            self._hire()

    def _hire(self) -> None:
        """A thread for the pool: a new one, or instead of one that was given up (others may wait for it)."""
        threading.Thread(target=self._work, name="vime-reward", daemon=True).start()

    def _replace(self) -> None:
        """Another thread for one that is lost until its call ends."""
        with self._lock:
            self._lost += 1
        self._hire()

    def _refusal(self) -> Refused:
        return Refused(
            f"{self._lost} calls of {self._name} still run past their deadline of {self._deadline:g} s, and no more "
            "are begun until some end: give it a time limit of its own"
        )

    def _work(self) -> None:
        while (run := self._runs.get()) is not None:
            if not run.play():
                with self._lock:
                    self._lost -= 1
                return

    def _learn(self, seconds: float) -> None:
        self._mean = seconds if self._mean is None else 0.8 * self._mean + 0.2 * seconds
