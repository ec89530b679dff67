"""A Python process beside this one, for whatever may hang, crash, or import half of the world."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

#: characters of a process's last line that are shown
_SHOWN = 300
#: exit statuses above this one are signals, as a shell counts them
_SIGNALS = 128
#: seconds for the supervisor to end what it runs
_KILLING = 10.0


@dataclass(frozen=True)
class ProcessResult:
    """How a process ended: ``problem`` is "" or one line, ``out`` is what it printed."""

    out: str
    problem: str = ""

    def answer(self) -> Any:
        """What a child that answers in JSON printed last."""
        return json.loads(self.out.splitlines()[-1])


class PythonProcess:
    """A supervised process: it and what it starts end with ``kill``, and with this process, whatever way that ends."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - wait() closes them
        command = [sys.executable, "-P", *arguments]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vime_core.runtime.supervisor", "0", *command],
            env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # finds what this process would find
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
        )

    def wait(self, deadline: float) -> ProcessResult:
        """Its end, or its killing after ``deadline`` seconds."""
        try:
            code: int | None = self._process.wait(deadline)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        out, err = _read(self._out), _read(self._err)
        return ProcessResult(out, _problem(code, deadline, last_line(err)))

    def kill(self) -> None:
        """Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(_KILLING)


def run_python(arguments: Sequence[str], environ: Mapping[str, str], deadline: float) -> ProcessResult:
    """Run ``python ARGUMENTS...`` to its end."""
    return PythonProcess(arguments, environ).wait(deadline)


def last_line(text: str) -> str:
    """The last line that says something: for a traceback, the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_SHOWN] if lines else ""


def _problem(code: int | None, deadline: float, line: str) -> str:
    said = f"; its last line: {line}" if line else ""
    if code is None:
        return f"did not end within {deadline:.3g} s{said}"
    if code > _SIGNALS:
        return f"crashed with {signal.Signals(code - _SIGNALS).name}{said}"
    return (line or f"exit status {code}") if code else ""


def _read(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode("utf-8", "replace")
