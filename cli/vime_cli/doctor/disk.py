"""Disk: the folder in which runs lie, and the one for sockets and temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vime_cli.doctor.context import DoctorContext
from vime_cli.units import GIB, MIB, size
from vime_core.api import DoctorFinding

#: a run's logs, samples and metrics, and the checkpoints of a tiny model
RUN = GIB
#: what Ray, vLLM and torch's compiler put into the temporary folder
TEMPORARY = GIB
#: a checkpoint has weights, master weights and two moments: 4 to 8 times a bfloat16 model; two are kept, one is written
CHECKPOINTS = 3 * 8
#: share of a file system in use from which Ray refuses to put objects on it
FULL = 0.95
TRIAL = MIB


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    need = RUN + CHECKPOINTS * context.weights
    yield folder("runs", context.run_dir, need, "free space, or choose another --run-dir")
    yield folder("temporary", context.temp_dir, TEMPORARY, "free space, or set TMPDIR to a folder on another disk")


def folder(name: str, path: Path, need: int, fix: str) -> DoctorFinding:
    """Really write a file where ``path`` is or would be made, and look at the space that is left."""
    place = path.expanduser().absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(TRIAL))
            file.flush()
            os.fsync(file.fileno())
        space = shutil.disk_usage(place)
    except OSError as error:
        return DoctorFinding(name, False, f"{path} cannot be written ({place}): {error.strerror}", fix)
    detail = f"{path} has {size(space.free)} free"
    if space.free < need:
        return DoctorFinding(name, False, f"{detail}, needed are {size(need)}", fix)
    used = 1 - space.free / space.total if space.total else 0.0
    if used > FULL:
        detail = f"{detail}, but is {used:.0%} full: above {FULL:.0%} Ray puts no objects on a disk"
        return DoctorFinding(name, True, detail, fix, warns=True)
    return DoctorFinding(name, True, detail)
