"""math-verify in a process of its own, so that a comparison that never ends can be ended.

Run as a module it is that process: one JSON line in, one out, LaTeX only (the other parser of math-verify hands text to
Python's ``eval``).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import Any

from vime_core.api import RewardError

_START_SECS = 120.0
_MEMORY_BYTES = 4 << 30


class MathProcess:
    """Starts the process when it is first needed, and again after it had to be ended. Safe to call from any thread."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def equal(self, gold: str, answer: str) -> bool | None:
        """Whether the two are the same mathematical object; None if that could not be told in time."""
        with self._lock:
            child = self._running()
            assert child.stdin is not None
            child.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
            child.stdin.flush()
            reply = self._line(child, self._deadline)
            if reply is None:
                self._end()
            return None if reply is None else bool(json.loads(reply))

    def close(self) -> None:
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            command = [sys.executable, "-m", __name__]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
            if self._line(self._child, _START_SECS) is None:
                self._end()
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

    def _end(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.kill()
        child.wait(timeout=30)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _serve() -> None:
    import resource

    from math_verify import parse, verify
    from math_verify.parser import LatexExtractionConfig

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))

    def read(text: str) -> Any:
        return parse(f"\\boxed{{{text}}}", [LatexExtractionConfig()], parsing_timeout=None)

    print("ready", flush=True)
    for line in sys.stdin:
        try:
            gold, answer = (read(text) for text in json.loads(line))
            equal = bool(gold) and bool(answer) and bool(verify(gold, answer, timeout_seconds=None))
        except (Exception, RecursionError):  # what cannot be parsed or compared is not the same
            equal = False
        print(json.dumps(equal), flush=True)


if __name__ == "__main__":
    _serve()
