"""Keeps one command and everything that it starts: ``python keeper.py STATUS COMMAND...``.

The keeper is a subreaper, so a process that loses its parent becomes the keeper's child, whatever it did to its
session, its environment or its name. STATUS gets the command's process id, then its exit code and the time. When
standard input ends (the test is over, or was killed), whatever is left is killed. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_POLL = 0.05


def main() -> None:
    status, command = Path(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # a killed test's group: the work is still to be done
        signal.signal(number, lambda *_: None)
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    _write(status, f"{child.pid}")
    while not select.select([0], [], [], _POLL)[0]:
        for pid, code in _reap():
            if pid == child.pid:
                _write(status, f"{child.pid} {os.waitstatus_to_exitcode(code)} {time.time()}")
    while left := descendants(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)
        list(_reap())


def _reap() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (done := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(done)
    return found


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def descendants(root: int) -> dict[int, str]:
    """Living processes below ``root``: process id -> what ``ps`` would show. Zombies do not live, but lead on."""
    parents, zombies = _table()
    found: dict[int, str] = {}
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found |= {pid: _title(pid) for pid in frontier - zombies}
    return found


def _table(looks: int = 5) -> tuple[dict[int, int], set[int]]:
    """Process id -> its parent's, and which are zombies. Where a parent went away meanwhile, all is read again: its
    children belong to another by then."""
    parents: dict[int, int] = {}
    zombies: set[int] = set()
    for _ in range(looks):
        parents, zombies = {}, set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                parents[int(folder.name)] = int(parent)
                if state in "ZX":
                    zombies.add(int(folder.name))
        if set(parents.values()) <= {0, *parents}:
            break
    return parents, zombies


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200].strip()
    return "?"


if __name__ == "__main__":
    main()
