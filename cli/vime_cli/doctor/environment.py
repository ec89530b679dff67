"""Environment variables that change what a run does, or keep its processes from talking to one another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from vime_cli.doctor.context import DoctorContext
from vime_core.api import DoctorFinding
from vime_core.config import Catalogue, read_environment


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    environ = context.environ
    yield threads(environ)
    yield hub(environ)
    yield from ray(environ)
    yield from own(environ, context.plugins.options)


def threads(environ: Mapping[str, str]) -> DoctorFinding:
    """vime sets the variable in the processes that it starts; a server started by hand takes what the shell says."""
    name, text = "OMP_NUM_THREADS", environ.get("OMP_NUM_THREADS", "")
    fix = f"export {name}=1"
    cores = os.cpu_count() or 1
    if not text:
        detail = "not set: what is started by hand takes all cores for each process and looks hung"
        return DoctorFinding(name, True, detail, fix, warns=True)
    if not text.isdigit() or not 0 < int(text) <= cores:
        return DoctorFinding(
            name, True, f"{text!r} is not a number of threads from 1 to {cores} cores", fix, warns=True
        )
    return DoctorFinding(name, True, text)


def hub(environ: Mapping[str, str]) -> DoctorFinding:
    on = environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return DoctorFinding(
        "HF_HUB_OFFLINE", True, "nothing is looked up on the hub" if on else "not set; vime reads folders only"
    )


def ray(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Ray joins the cluster of this variable, and then refuses the resources that vime gives its own."""
    address = environ.get("RAY_ADDRESS")
    if address:
        detail = f"{address}: Ray would join that cluster where vime wants to start one of its own"
        yield DoctorFinding(
            "RAY_ADDRESS", False, detail, f"unset RAY_ADDRESS; vime train --ray-address {address} joins it"
        )


def own(environ: Mapping[str, str], options: Mapping[str, type]) -> Iterator[DoctorFinding]:
    """``VIME_*`` variables that vime does not take; ``options`` are the plugins'."""
    problems: list[str] = []
    read_environment(environ, Catalogue(options), problems)
    for problem in problems:
        yield DoctorFinding("VIME_*", False, problem, "unset it, or spell it as vime train --help does")
