"""The link: two processes of this machine, the device's collective between them, and one sum that has to come out."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping

from vime_cli.doctor.context import DoctorContext
from vime_cli.doctor.packages import installed_version
from vime_cli.doctor.ports import LOOPBACK
from vime_core.api import DoctorFinding
from vime_core.runtime import ProcessResult, PythonProcess, free_port, run_python

#: seconds for both to import torch, meet and sum; within them, seconds for the meeting itself
DEADLINE, MEETING = 120.0, 30.0


def look(context: DoctorContext, deadline: float = DEADLINE) -> Iterator[DoctorFinding]:
    """Where it does not come out: which rank waited for what, and what it said."""
    backend = context.usable()
    if backend is None or installed_version("torch") is None:
        lacking = "torch is not installed" if backend else "there is no device"
        yield DoctorFinding("collective", True, f"not tried: {lacking}", warns=True)
        return
    environ = {**context.environ, **backend().environment("trainer")}
    counted = run_python(["-m", "vime_cli.doctor.worker", "count", context.worker_spec()], environ, deadline)
    if counted.problem:
        yield DoctorFinding(
            "collective", False, f"devices cannot be counted: {counted.problem}", "mend the device first"
        )
        return
    world = max(1, min(2, counted.answer()))
    what = f"{backend.collective} between {world} processes" if world > 1 else f"{backend.collective}, one device"
    errors = _try(context, environ, world, deadline)
    if errors:
        yield DoctorFinding("collective", False, f"{what}: {'; '.join(errors)}", _fix(backend.collective, environ))
    else:
        yield DoctorFinding("collective", True, f"{what}: an all-reduce gave the right sum")


def _try(context: DoctorContext, environ: Mapping[str, str], world: int, deadline: float) -> list[str]:
    """A line for each rank that did not end well."""
    end = time.monotonic() + deadline
    meeting = {"world": world, "address": f"tcp://{LOOPBACK}:{free_port(LOOPBACK)}", "timeout": min(MEETING, deadline)}
    ranks = [
        PythonProcess(["-m", "vime_cli.doctor.worker", "link", context.worker_spec(rank=rank, **meeting)], environ)
        for rank in range(world)
    ]
    try:
        ends = [rank.wait(max(0.1, end - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [f"rank {rank} {_phase(one)}: {one.problem}" for rank, one in enumerate(ends) if one.problem]


def _phase(ended: ProcessResult) -> str:
    """What a rank was at: it says so before it begins."""
    lines = ended.out.splitlines()
    return f"while it {lines[-1]}" if lines else "before it began"


def _fix(collective: str, environ: Mapping[str, str]) -> str:
    variable = f"{collective.upper()}_SOCKET_IFNAME"
    here = [name for _, name in socket.if_nameindex()]
    named = [name.strip("^= ") for name in environ.get(variable, "").split(",") if name.strip("^= ")]
    if any(not any(one.startswith(name) for one in here) for name in named):
        return f"unset {variable}, or name an interface of this machine: {', '.join(here)}"
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return f"the host name does not resolve: add '127.0.0.1 {socket.gethostname()}' to /etc/hosts"
    return f"processes must reach one another by TCP: look at firewall and container network, or set {variable}"
