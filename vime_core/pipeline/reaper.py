"""Kills what must not outlive its owner: ``python -m vime_core.pipeline.reaper FOLDER PID@START ...``.

A driver that is killed ends nothing. Ray's daemons and workers then notice by themselves, but two of its agents try
for a minute to tell a server that is gone, too. This process holds the other end of a pipe of the driver's; when that
closes, it waits a moment, kills those of its list that are still there and removes their temporary folder. START tells
a process from a later one with the same id.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

#: seconds for the processes to end by themselves
GRACE = 3.0
#: last word of a driver that ends by itself
ALIVE = b"alive"
#: times that a killed driver's folder is looked for, once a second
_REMOVALS = 12


def children() -> set[str]:
    """Marks of all processes below this one."""
    import psutil

    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(f"{process.pid}@{process.create_time()}")
    return found


@contextlib.contextmanager
def reaping(marks: Sequence[str], folder: Path) -> Iterator[None]:
    """After this block, or when this process is killed in it, none of the marked processes lives on; after a kill
    ``folder`` is removed, too (a driver that lives removes it itself, with what is to be kept taken out)."""
    command = [sys.executable, "-m", "vime_core.pipeline.reaper", str(folder), *marks]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        reaper.communicate(ALIVE, timeout=GRACE + 30.0)


def main(folder: str, marks: Sequence[str]) -> None:
    import psutil

    word = sys.stdin.buffer.read()
    processes = []
    for mark in marks:
        pid, start = mark.split("@")
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if process.create_time() == float(start):
                processes.append(process)
    _, alive = psutil.wait_procs(processes, timeout=GRACE)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if word != ALIVE:
        _remove(folder)


def _remove(folder: str) -> None:
    """Engines that end by themselves may still write into it for a moment."""
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(1.0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
