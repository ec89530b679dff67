"""Log files of engines and router: one a process, and its end in every error message."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def log_tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log as the end of a message; empty where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 16384))
        end = stream.read().decode(errors="replace").splitlines()[-lines:]
    return "\n".join([f"\nlast lines of {path}:", *end]) if end else f"\n({path} is empty)"


def redirect_output(path: Path) -> None:
    """Send this process's stdout and stderr, and what its children inherit, to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
