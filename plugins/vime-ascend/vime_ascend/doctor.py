"""Findings of ``vime doctor`` about Ascend's stack on this machine. Nothing here touches a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from vime_ascend.probe import Sight, look, missing
from vime_ascend.versions import IPC_CANN, at_least, cann_version, faults, known
from vime_ascend.visible import VISIBLE
from vime_core.api import ConfigError, DoctorFinding, by_number
from vime_core.runtime import ProcessResult, run_python

#: no one has run this on hardware; docs/ascend.md has the list
UNVERIFIED = "not yet run on an NPU by vime's authors: kernels, HCCL between machines, sleeping engines, MindSpeed"
#: seconds for vLLM and vllm-ascend to be imported
DEADLINE = 240.0


def findings(
    sight: Sight | None = None,
    environ: Mapping[str, str] | None = None,
    interface: Callable[[], ProcessResult] | None = None,
) -> Sequence[DoctorFinding]:
    """In the order in which they should be mended. ``interface`` looks at vLLM's and vllm-ascend's weight transfer."""
    sight, environ = sight or look(), os.environ if environ is None else environ
    found = [_lack(line) for line in missing(sight)]
    if not found:
        found.append(DoctorFinding("NPUs", True, f"{len(sight.nodes)} devices, CANN at {sight.toolkit}"))
    found += [_told("versions", line) for line in faults(sight.packages)]
    if all(one.ok for one in found):
        found += [_release(sight), _agree((interface or _look_at_interfaces)())]
    found += [*_cann(sight), *_visible(environ), *_allocator(environ)]
    return [*found, DoctorFinding("hardware", True, UNVERIFIED)]


def _lack(line: str) -> DoctorFinding:
    what, _, fix = line.partition("; ") if "; " in line else line.partition(": ")
    return DoctorFinding("Ascend", False, what, fix or "see docs/ascend.md")


def _told(name: str, line: str) -> DoctorFinding:
    what, _, fix = line.rpartition(": ")
    return DoctorFinding(name, False, what, fix)


def _release(sight: Sight) -> DoctorFinding:
    release = known(sight.packages)
    if release is None:
        listed = ", ".join(f"{name} {version}" for name, version in sight.packages.items())
        return DoctorFinding(
            "versions", False, f"no published set: {listed}", "pip install -r constraints/ascend-a2.txt"
        )
    return DoctorFinding("versions", True, f"{release.name} (CANN {release.cann})")


def _look_at_interfaces() -> ProcessResult:
    return run_python(["-m", "vime_ascend.sync.generation"], os.environ, DEADLINE)


def _agree(ended: ProcessResult) -> DoctorFinding:
    if ended.problem:
        return DoctorFinding("weight transfer", False, ended.problem, "pip install -r constraints/ascend-a2.txt")
    return DoctorFinding("weight transfer", True, f"vLLM and vllm-ascend have the interface {ended.out.split()[-1]}")


def _cann(sight: Sight) -> list[DoctorFinding]:
    version = cann_version(sight.toolkit) if sight.toolkit else None
    if version is None:
        return []
    able = at_least(version.lower(), IPC_CANN)
    fix = "" if able else f"install CANN {IPC_CANN} or later, or do not colocate"
    return [DoctorFinding("IPC", able, f"CANN {version}, handles between processes need {IPC_CANN}", fix)]


def _visible(environ: Mapping[str, str]) -> list[DoctorFinding]:
    text = environ.get(VISIBLE.variable, "")
    if not text:
        return []
    try:
        ids = VISIBLE.parse(text)
    except ConfigError as error:
        return [
            DoctorFinding("visible devices", False, str(error), f"unset {VISIBLE.variable}, or name each device once")
        ]
    ordered = by_number(ids)
    in_order = ordered == ",".join(ids)
    fix = "" if in_order else f"export {VISIBLE.variable}={ordered}"
    return [DoctorFinding("visible devices", in_order, f"{VISIBLE.variable}={text}", fix)]


def _allocator(environ: Mapping[str, str]) -> list[DoctorFinding]:
    name = "PYTORCH_NPU_ALLOC_CONF"
    if "expandable_segments:True" not in environ.get(name, ""):
        return []
    detail = f"{name}={environ[name]} in the shell; vime says it anew for each process"
    return [DoctorFinding("allocator", True, detail)]
