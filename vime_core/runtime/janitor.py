"""Kills what must not outlive its owner: ``python -m vime_core.runtime.janitor FOLDER PID@START ...``.

A driver that is killed ends nothing. Ray's daemons and workers then notice by themselves, but two of its agents try
for a minute to tell a server that is gone, too. This process holds the other end of a pipe of the driver's; when that
closes, it waits a moment, kills those of its list that are still there and removes their temporary folder. START tells
a process from a later one with the same id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

#: seconds for the processes to end by themselves
GRACE = 3.0
#: last word of a driver that ends by itself
ALIVE = b"alive"
#: seconds for a killed driver's trainers and engines to end by themselves: longer than they take on a busy machine
_ENDING = 60.0
#: times that its folder is looked for afterwards, once a second
_REMOVALS = 5


def children() -> set[str]:
    """Marks of all processes below this one."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(f"{process.pid}@{process.create_time()}")
    return found


@contextlib.contextmanager
def reaping(marks: Sequence[str], folder: Path) -> Iterator[None]:
    """After this block, or when this process is killed in it, none of the marked processes lives on; after a kill
    ``folder`` is removed, too (a driver that lives removes it itself, with what is to be kept taken out)."""
    command = [sys.executable, "-m", "vime_core.runtime.janitor", str(folder), *marks]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        reaper.communicate(ALIVE, timeout=GRACE + 30.0)


def main(folder: str, marks: Sequence[str]) -> None:
    word = sys.stdin.buffer.read()
    processes = []
    for mark in marks:
        pid, start = mark.split("@")
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if process.create_time() == float(start):
                processes.append(process)
    _, alive = psutil.wait_procs(processes, timeout=GRACE)
    _kill(alive)
    if word != ALIVE:
        _remove(folder)


def _remove(folder: str) -> None:
    """Once nobody is left who writes into it."""
    _kill(_those(lambda process: any(folder in word for word in process.cmdline())))  # Ray's daemons, late ones too
    end = time.monotonic() + _ENDING
    while (left := _those(lambda process: process.environ().get("TMPDIR") == folder)) and time.monotonic() < end:
        time.sleep(0.5)
    _kill(left)
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(1.0)


def _those(which: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Processes of the run: all such but this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and which(process):
                found.append(process)
    return found


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
