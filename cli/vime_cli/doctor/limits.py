"""Limits: open files, processes and threads that this user may have."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from vime_cli.doctor.context import DoctorContext
from vime_core.api import DoctorFinding

#: a process of the smallest run (one trainer rank, one engine) was seen with 147 open files; each request in flight,
#: engine and rank adds some, and Ray itself warns below 4096
FILES_LEAST, FILES_ADVISED = 256, 4096
#: the smallest run was seen with 375 threads in 12 processes on two cores; each rank and engine adds a hundred
TASKS_LEAST, TASKS_ADVISED = 512, 4096


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield files()
    yield tasks()
    yield memory()


def files() -> DoctorFinding:
    """The hard limit decides: Ray and vLLM raise the soft one as far as it lets them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    have = _number(hard)
    detail = f"{_text(soft)} open files a process, up to {_text(hard)}"
    fix = "ulimit -n 65536 as root, LimitNOFILE= of the service, or docker run --ulimit nofile=65536"
    return _against(("open files", detail), have, (FILES_LEAST, FILES_ADVISED), fix)


def tasks() -> DoctorFinding:
    """Threads of all the user's processes (RLIMIT_NPROC, not enforced for root) and of the container (pids.max)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    bounds = {"ulimit -u": _number(soft) if os.geteuid() else _UNLIMITED, "pids.max": _pids()}
    name = min(bounds, key=lambda key: bounds[key])
    have = bounds[name]
    detail = f"{_text(have)} processes and threads ({name})" if have < _UNLIMITED else "processes without a limit"
    fix = f"ulimit -u {TASKS_ADVISED}, or docker run --pids-limit {TASKS_ADVISED}"
    return _against(("processes", detail), have, (TASKS_LEAST, TASKS_ADVISED), fix)


def memory() -> DoctorFinding:
    """Virtual memory has to be without a limit: Ray and torch map far more than they touch."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return DoctorFinding("address space", True, "without a limit")
    detail = f"{soft} bytes; Ray and torch map much more than they use"
    return DoctorFinding("address space", False, detail, "ulimit -v unlimited")


_UNLIMITED = 1 << 62


def _against(what: tuple[str, str], have: int, bounds: tuple[int, int], fix: str) -> DoctorFinding:
    (name, detail), (least, advised) = what, bounds
    if have < least:
        return DoctorFinding(name, False, f"{detail}; a run needs {least}", fix)
    if have < advised:
        return DoctorFinding(name, True, f"{detail}; {advised} are advised", fix, warns=True)
    return DoctorFinding(name, True, detail)


def _number(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _text(limit: int) -> str:
    return "unlimited" if limit in (resource.RLIM_INFINITY, _UNLIMITED) else str(limit)


def _pids() -> int:
    for place in ("pids.max", "pids/pids.max"):
        try:
            return int(Path("/sys/fs/cgroup", place).read_text())
        except (OSError, ValueError):  # no such cgroup, or "max"
            continue
    return _UNLIMITED
