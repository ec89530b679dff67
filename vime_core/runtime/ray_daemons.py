"""Ray's own processes, of a Ray that this process started: their end is heard at once and under their name, and not
taken for the end of the workers that they take along."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from vime_core.api import VimeError

#: a program's name -> what it is
_DAEMONS = {"gcs_server": "GCS, Ray's control process", "raylet": "raylet, Ray's process of a node"}


@dataclass(frozen=True)
class _Daemon:
    process: psutil.Process
    name: str
    log: Path

    def lives(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE
        return False


_watched: list[_Daemon] = []


@contextlib.contextmanager
def watching(logs: Path) -> Iterator[None]:
    """In this block :func:`dead_daemon` looks at the daemons that are children of this process now; ``logs`` is where
    the output of Ray's processes will be found after a failure."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            name = process.name()
            if name in _DAEMONS:
                _watched.append(_Daemon(process, name, logs / "ray" / f"{name}.out"))
    try:
        yield
    finally:
        _watched.clear()


def dead_daemon() -> VimeError | None:
    """What to raise because one has ended."""
    for daemon in _watched:
        if not daemon.lives():
            return VimeError(
                f"the {_DAEMONS[daemon.name]}, has ended (pid {daemon.process.pid}): the run cannot go on without it; "
                f"what it said is in {daemon.log}. Resume from the last checkpoint"
            )
    return None


def ray_works() -> bool:
    """Ray is up, and can be asked to end something."""
    import ray

    return ray.is_initialized() and dead_daemon() is None
