"""Temporary folders of runs that were killed whole, driver and janitor at once: the next run of the same user removes
them. A folder says whose it is; one that says nothing, or whose owner lives, or that a process still uses, is left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import psutil

#: of the folders' names
PREFIX = "vime-"
_OWNER = "owner.json"


def mark(folder: Path) -> None:
    """``folder`` belongs to this process."""
    (folder / _OWNER).write_text(json.dumps(_identity(os.getpid())))


def remove_leftovers(parent: Path) -> list[Path]:
    """What was removed of what lies in ``parent``."""
    left = [folder for folder in parent.glob(f"{PREFIX}*") if _is_ours(folder) and _is_orphan(folder)]
    used = _in_use() if left else set()
    gone = [folder for folder in left if str(folder) not in used]
    for folder in gone:
        shutil.rmtree(folder, ignore_errors=True)
    return gone


def _is_ours(folder: Path) -> bool:
    """Nobody else's, and no link to somewhere else."""
    try:
        return folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
    except OSError:
        return False


def _is_orphan(folder: Path) -> bool:
    try:
        owner = json.loads((folder / _OWNER).read_text())
        return bool(owner["where"] == _where() and owner != _identity(int(owner["pid"])))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _identity(pid: int) -> dict[str, object]:
    """Of a living process: the start tells it from a later one with the same id; empty for none."""
    try:
        return {"pid": pid, "start": psutil.Process(pid).create_time(), "where": _where()}
    except psutil.Error:
        return {}


def _where() -> str:
    """The machine and, on Linux, the set of processes that can be seen: containers may share a temporary folder."""
    with contextlib.suppress(OSError):
        return f"{os.uname().nodename} {os.readlink('/proc/self/ns/pid')}"
    return os.uname().nodename


def _in_use() -> set[str]:
    """Temporary folders of living processes."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.add(process.environ().get("TMPDIR", ""))
    return found
