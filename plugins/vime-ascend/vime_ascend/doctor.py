"""Findings of ``vime doctor`` about Ascend's stack on this machine. Nothing here touches a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from vime_cli.doctor.child import Ended, run

from vime_ascend.probe import Sight, look, missing
from vime_ascend.versions import IPC_CANN, at_least, cann_version, faults, known
from vime_ascend.visible import VARIABLE, parse
from vime_core.api.device import Finding
from vime_core.api.errors import ConfigError

#: no one has run this on hardware; docs/ascend.md has the list
UNVERIFIED = "not yet run on an NPU by vime's authors: kernels, HCCL between machines, sleeping engines, MindSpeed"
#: seconds for vLLM and vllm-ascend to be imported
DEADLINE = 240.0


def findings(
    sight: Sight | None = None, environ: Mapping[str, str] | None = None, interface: Callable[[], Ended] | None = None
) -> Sequence[Finding]:
    """In the order in which they should be mended. ``interface`` looks at vLLM's and vllm-ascend's weight transfer."""
    sight, environ = sight or look(), os.environ if environ is None else environ
    found = [_lack(line) for line in missing(sight)]
    if not found:
        found.append(Finding("NPUs", True, f"{len(sight.nodes)} devices, CANN at {sight.toolkit}"))
    found += [_told("versions", line) for line in faults(sight.packages)]
    if all(one.ok for one in found):
        found += [_release(sight), _agree((interface or _look_at_interfaces)())]
    found += [*_cann(sight), *_visible(environ), *_allocator(environ)]
    return [*found, Finding("hardware", True, UNVERIFIED)]


def _lack(line: str) -> Finding:
    what, _, fix = line.partition("; ") if "; " in line else line.partition(": ")
    return Finding("Ascend", False, what, fix or "see docs/ascend.md")


def _told(name: str, line: str) -> Finding:
    what, _, fix = line.rpartition(": ")
    return Finding(name, False, what, fix)


def _release(sight: Sight) -> Finding:
    release = known(sight.packages)
    if release is None:
        listed = ", ".join(f"{name} {version}" for name, version in sight.packages.items())
        return Finding("versions", False, f"no published set: {listed}", "pip install -r constraints/ascend-a2.txt")
    return Finding("versions", True, f"{release.name} (CANN {release.cann})")


def _look_at_interfaces() -> Ended:
    return run(["-m", "vime_ascend.sync.generation"], os.environ, DEADLINE)


def _agree(ended: Ended) -> Finding:
    if ended.problem:
        return Finding("weight transfer", False, ended.problem, "pip install -r constraints/ascend-a2.txt")
    return Finding("weight transfer", True, f"vLLM and vllm-ascend have the interface {ended.out.split()[-1]}")


def _cann(sight: Sight) -> list[Finding]:
    version = cann_version(sight.toolkit) if sight.toolkit else None
    if version is None:
        return []
    able = at_least(version.lower(), IPC_CANN)
    fix = "" if able else f"install CANN {IPC_CANN} or later, or do not colocate"
    return [Finding("IPC", able, f"CANN {version}, handles between processes need {IPC_CANN}", fix)]


def _visible(environ: Mapping[str, str]) -> list[Finding]:
    text = environ.get(VARIABLE, "")
    if not text:
        return []
    try:
        ids = parse(text)
    except ConfigError as error:
        return [Finding("visible devices", False, str(error), f"unset {VARIABLE}, or name each device once")]
    in_order = ids == sorted(ids)
    fix = "" if in_order else f"export {VARIABLE}={','.join(map(str, sorted(ids)))}"
    return [Finding("visible devices", in_order, f"{VARIABLE}={text}", fix)]


def _allocator(environ: Mapping[str, str]) -> list[Finding]:
    name = "PYTORCH_NPU_ALLOC_CONF"
    if "expandable_segments:True" not in environ.get(name, ""):
        return []
    detail = f"{name}={environ[name]} in the shell; vime says it anew for each process"
    return [Finding("allocator", True, detail)]
