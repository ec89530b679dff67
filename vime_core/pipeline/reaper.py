"""Kills what must not outlive its owner, when the owner is gone: ``python -m vime_core.pipeline.reaper PID@START ...``.

A driver that is killed ends nothing. Ray's daemons and workers then notice by themselves, but two of its agents try
for a minute to tell a server that is gone, too. This process holds the other end of a pipe of the driver's; when that
closes, it waits a moment and kills those of its list that are still there. START tells a process from a later one with
the same id.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

#: seconds for the processes to end by themselves
GRACE = 3.0


def children() -> set[str]:
    """Marks of all processes below this one."""
    import psutil

    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(f"{process.pid}@{process.create_time()}")
    return found


@contextlib.contextmanager
def reaping(marks: Sequence[str]) -> Iterator[None]:
    """After this block, or when this process is killed in it, none of the marked processes lives on."""
    command = [sys.executable, "-m", "vime_core.pipeline.reaper", *marks]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        reaper.communicate(timeout=GRACE + 30.0)


def main(marks: Sequence[str]) -> None:
    import psutil

    sys.stdin.read()
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


if __name__ == "__main__":
    main(sys.argv[1:])
