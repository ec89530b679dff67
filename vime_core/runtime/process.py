"""A server as a child process that ends with its owner, whatever way the owner ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vime_core.api import EngineError
from vime_core.runtime.logs import log_error

#: seconds between looks at a server that is coming up
_POLL = 0.1


class ChildProcess:
    """A guarded command with a log file.

    Args:
        name: for messages.
        grace: seconds between SIGTERM and SIGKILL at the end.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], grace: float = 5.0
    ) -> None:
        self.name, self.log, self.grace = name, log, grace
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vime_core.runtime.supervisor", str(grace), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the guard."""
        return self._process.pid

    def require_alive(self) -> None:
        """Raises EngineError with the first error in its log if the command is gone."""
        code = self._process.poll()
        if code is not None:
            raise EngineError(f"{self.name} ended with status {code}{log_error(self.log)}")

    def wait_until(self, up: Callable[[], bool], deadline: float) -> None:
        """Wait until ``up()``.

        Raises:
            EngineError: the command ended, or ``deadline`` seconds went by; with the first error in its log.
        """
        end = time.monotonic() + deadline
        while not up():
            self.require_alive()
            if time.monotonic() > end:
                raise EngineError(f"{self.name} did not come up within {deadline:.0f} s{log_error(self.log)}")
            time.sleep(_POLL)
        self.require_alive()

    def stop(self) -> None:
        """End the command and everything it started. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(self.grace + 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its keeper ends the command then
            self._process.wait()
