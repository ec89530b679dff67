"""Shared memory: weights that pass between processes of a machine, Ray's object store, vLLM's queues.

A weight sync writes into anonymous files (``memfd``), which are bound by the machine's memory; ``/dev/shm`` is used by
Ray for its objects (step batches among them) and by vLLM between the workers of one engine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vime_cli.doctor.context import DoctorContext
from vime_cli.units import MIB, size
from vime_core.api import DoctorFinding

#: what vLLM's queue between an engine and its workers takes: 10 slots of 16 MiB (VLLM_MQ_MAX_CHUNK_BYTES_MB)
QUEUE = 160 * MIB
#: what is really written and read back, at most
TRIAL = 256 * MIB
#: weights of the smallest models that are trained, where no model is named
SMALL = 512 * MIB
#: of an update's bytes: the new version beside the one to go back to
VERSIONS = 2
#: files of the second and the first version of control groups: limit, used
CGROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield file_system(context.shm)
    yield anonymous(context.weights)


def file_system(folder: Path, need: int = QUEUE) -> DoctorFinding:
    """Free bytes of ``folder``, and as many as vLLM's queue takes really written into it."""
    name, fix = str(folder), "give a container --shm-size=8g or --ipc=host, or delete stale files there"
    try:
        space = os.statvfs(folder)
        free = space.f_bavail * space.f_frsize
        if free >= need:
            with tempfile.TemporaryFile(dir=folder) as file:
                _write(file.fileno(), need)
    except OSError as error:
        return DoctorFinding(name, False, f"cannot be written: {error.strerror}", fix)
    if free < need:
        detail = f"{size(free)} free: an engine of several devices needs {size(need)} for its queue"
        return DoctorFinding(name, False, detail, fix)
    store = int(0.3 * _available())
    if free < store:
        detail = f"{size(free)} free, Ray's object store would take {size(store)} and goes to a disk instead"
        return DoctorFinding(name, True, detail, fix, warns=True)
    return DoctorFinding(name, True, f"{size(free)} free, {size(need)} written")


def anonymous(weights: int, available: int | None = None) -> DoctorFinding:
    """Memory for the versions of the weights that a sync keeps."""
    need = VERSIONS * (weights or SMALL)
    have = _available() if available is None else available
    whose = f"two versions of {size(weights)} of weights" if weights else f"a sync of a small model ({size(SMALL)})"
    if have < need:
        fix = "end other processes, take a machine with more memory, or use --weight-sync gloo between machines"
        return DoctorFinding("weights", False, f"{size(have)} of memory are available, {whose} need {size(need)}", fix)
    try:
        _memfd(min(need, TRIAL))
    except OSError as error:
        fix = "raise the memory limit of the container, or allow memfd_create in its seccomp profile"
        return DoctorFinding("weights", False, f"anonymous memory cannot be written: {error.strerror}", fix)
    return DoctorFinding("weights", True, f"{size(have)} of memory available, {whose} need {size(need)}")


def _memfd(count: int) -> None:
    with open(os.memfd_create("vime-doctor"), "wb") as file:
        _write(file.fileno(), count)


def _write(fd: int, count: int) -> None:
    block = b"\1" * MIB
    for _ in range(0, count, MIB):
        os.write(fd, block)


def _available() -> int:
    """Bytes that new processes can get, of the machine and of the cgroup."""
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
    have = int(rows["MemAvailable"].split()[0]) * 1024
    for limit, used in CGROUPS:
        try:
            bound, taken = (int(Path("/sys/fs/cgroup", name).read_text()) for name in (limit, used))
        except (OSError, ValueError):  # no such cgroup, or "max"
            continue
        have = min(have, bound - taken)
    return max(0, have)
