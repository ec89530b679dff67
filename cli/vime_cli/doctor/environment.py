"""Environment variables that change what a run does, or keep its processes from talking to one another."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from vime_cli.doctor.context import DoctorContext
from vime_cli.doctor.ports import LOOPBACK, node_address
from vime_core.api import DoctorFinding
from vime_core.config import Catalogue, read_environment


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    environ = context.environ
    yield threads(environ)
    yield proxies(environ)
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


def proxies(environ: Mapping[str, str]) -> DoctorFinding:
    """Calls to router and engines on this machine must not go to a proxy."""
    set_here = [key for key in environ if key.lower() in ("http_proxy", "all_proxy") and environ[key]]
    if not set_here:
        return DoctorFinding("proxies", True, "none for http")
    exempt = environ.get("no_proxy", environ.get("NO_PROXY", ""))
    reached = [host for host in dict.fromkeys((LOOPBACK, "localhost", node_address())) if not _exempt(host, exempt)]
    if not reached:
        return DoctorFinding("proxies", True, f"{', '.join(set_here)} set, this machine is exempt")
    detail = f"{', '.join(set_here)} would take the calls to {', '.join(reached)}, where router and engines listen"
    names = ",".join(filter(None, [exempt, *reached]))
    return DoctorFinding("proxies", False, detail, f"export no_proxy={names} NO_PROXY={names}")


def _exempt(host: str, names: str) -> bool:
    urllib_rule: Any = urllib.request  # typeshed lacks the function
    return bool(urllib_rule.proxy_bypass_environment(host, {"no": names}))


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
