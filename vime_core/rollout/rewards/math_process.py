"""math-verify in processes of its own, so that a comparison that never ends can be ended, and holds up no other one.

Run as a module it is that process: one JSON line in, one out, LaTeX only (the other parser of math-verify hands text to
Python's ``eval``).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from vime_core.api import RewardError, Unscored

_START_SECS = 120.0
_MEMORY_BYTES = 4 << 30
#: of numbers that are not rational: relative to the larger one
_TOLERANCE = 1e-6


class MathPool:
    """``size`` processes, started when they are needed. Safe to call from any thread; the deadline of a comparison
    begins when a process begins with it."""

    def __init__(self, size: int, deadline: float) -> None:
        self._idle: queue.LifoQueue[MathProcess] = queue.LifoQueue()
        self._all = [MathProcess(deadline) for _ in range(size)]
        for process in reversed(self._all):
            self._idle.put(process)

    def equal(self, gold: str, answer: str) -> float | Unscored | None:
        """1.0 or 0.0; None where ``gold`` cannot be read; unscored where it was not told in time.

        Raises:
            RewardError: no process could be started.
        """
        process = self._idle.get()
        try:
            return process.equal(gold, answer)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        for process in self._all:
            process.end()


class MathProcess:
    """Starts the process when it is first needed, and again after it had to be ended. For one thread at a time."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._child: subprocess.Popen[bytes] | None = None

    def equal(self, gold: str, answer: str) -> float | Unscored | None:
        """As :meth:`MathPool.equal`."""
        child = self._running()
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has just died: no line will come
            child.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
        reply = self._line(child, self._deadline)
        if reply is None:
            self.end()
            return Unscored(f"timeout: reward math: math-verify did not compare the answer in {self._deadline:g} s")
        found: float | str | None = json.loads(reply)
        return Unscored(f"not compared: reward math: math-verify: {found}") if isinstance(found, str) else found

    def end(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.kill()
        child.wait(timeout=30)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is not None:
            self.end()
        if self._child is None:
            command = [sys.executable, "-m", __name__]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
            if self._line(self._child, _START_SECS) is None:
                self.end()
                raise RewardError(f"{' '.join(command)} did not start in {_START_SECS:g} s; is math-verify installed?")
        return self._child

    def _line(self, child: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """One line, or None at the deadline or when the process ended."""
        assert child.stdout is not None
        until, data = time.monotonic() + seconds, b""
        while not data.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                return None
            piece = os.read(child.stdout.fileno(), 65536)
            if not piece:
                return None
            data += piece
        return data


def _serve() -> None:
    import resource

    from math_verify import parse
    from math_verify.parser import LatexExtractionConfig

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))

    def read(text: str) -> list[Any]:
        found = parse(f"\\boxed{{{text}}}", [LatexExtractionConfig()], parsing_timeout=None)
        return [value for value in found if not isinstance(value, str)]

    _verdict(read, r"x(x+1)", "x^2+x")  # the first one makes tables, which takes seconds
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_verdict(read, *json.loads(line))), flush=True)


def _verdict(read: Callable[[str], list[Any]], gold: str, answer: str) -> float | str | None:
    """1.0, 0.0, None where ``gold`` is no mathematics, or why nothing could be told."""
    try:
        expected = read(gold)
        return float(_same(expected, read(answer))) if expected else None
    except (MemoryError, OverflowError, RecursionError) as error:
        return f"{type(error).__name__}: too large"
    except Exception:  # of a hundred kinds: what cannot be compared is not the same
        return 0.0


def _same(gold: list[Any], answer: list[Any]) -> bool:
    from math_verify import verify

    if not gold or not answer:
        return False
    numbers = _number(gold[0]), _number(answer[0])
    if None not in numbers:
        return _close(*numbers)
    # digits of our own: math-verify rounds to six decimals, which makes all small numbers equal
    return bool(verify(gold, answer, float_rounding=30, numeric_precision=45, timeout_seconds=None))


def _number(value: Any) -> Any:
    """The value as a number of sympy, or None."""
    is_number = bool(getattr(value, "is_number", False)) and not getattr(value, "is_Relational", False)
    return value if is_number and value.is_finite else None


def _close(gold: Any, answer: Any) -> bool:
    """Rational numbers exactly, others to a relative 1e-6."""
    if gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    first, second = gold.evalf(30), answer.evalf(30)
    return bool(abs(first - second) <= _TOLERANCE * max(abs(first), abs(second)))


if __name__ == "__main__":
    _serve()
