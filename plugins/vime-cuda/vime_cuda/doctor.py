"""Findings of ``vime doctor`` about NVIDIA's stack on this machine. Nothing here touches a device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from vime_core.api import ConfigError, DoctorFinding
from vime_cuda.environment import ALLOCATOR
from vime_cuda.probe import Sight, look, missing
from vime_cuda.versions import INSTALL_ENGINE, driver_fault, faults
from vime_cuda.visible import VISIBLE, partitions

#: no one has run this on hardware; docs/cuda.md has the list
UNVERIFIED = "not yet run on a GPU by vime's authors: benchmarks/cuda_check.py is the script that does"


def findings(sight: Sight | None = None, environ: Mapping[str, str] | None = None) -> Sequence[DoctorFinding]:
    """In the order in which they should be mended."""
    sight, environ = sight or look(), os.environ if environ is None else environ
    found = [_lack(line) for line in missing(sight)]
    if not found:
        found.append(DoctorFinding("GPUs", True, f"{len(sight.nodes)} devices, driver {sight.driver or 'unknown'}"))
    found += [*_driver(sight), *_versions(sight), *_layers(sight), *_visible(environ), *_allocator(environ)]
    return [*found, DoctorFinding("hardware", True, UNVERIFIED)]


def _lack(line: str) -> DoctorFinding:
    what, _, fix = line.partition(": ") if not line.startswith("no ") else line.partition("; ")
    return DoctorFinding("CUDA", False, what, fix or "see docs/cuda.md")


def _driver(sight: Sight) -> list[DoctorFinding]:
    fault = driver_fault(sight.driver, sight.torch_cuda) if sight.driver and sight.torch_cuda else ""
    what, _, fix = fault.partition(": ")
    return [DoctorFinding("driver", False, what, fix)] if fault else []


def _versions(sight: Sight) -> list[DoctorFinding]:
    lines = faults(sight.packages)
    if not lines:
        return []
    return [DoctorFinding("versions", True, "; ".join(lines), "pip install -r constraints/cuda.txt")]


def _layers(sight: Sight) -> list[DoctorFinding]:
    version = sight.packages.get("transformer-engine")
    if version is None:
        detail = "no Transformer Engine: the trainer uses plain torch modules, slower and with more memory"
        return [
            DoctorFinding(
                "layers",
                True,
                detail,
                INSTALL_ENGINE,
            )
        ]
    return [DoctorFinding("layers", True, f"Transformer Engine {version}")]


def _visible(environ: Mapping[str, str]) -> list[DoctorFinding]:
    text = environ.get(VISIBLE.variable, "")
    if not text:
        return []
    try:
        entries = VISIBLE.parse(text)
    except ConfigError as error:
        return [
            DoctorFinding("visible devices", False, str(error), f"unset {VISIBLE.variable}, or name each device once")
        ]
    if partitions(entries) > 1:
        detail = f"{VISIBLE.variable}={text}: a process uses one MIG partition, and NCCL joins none"
        return [DoctorFinding("visible devices", False, detail, "name whole devices, or one partition and one process")]
    return [DoctorFinding("visible devices", True, f"{VISIBLE.variable}={text}")]


def _allocator(environ: Mapping[str, str]) -> list[DoctorFinding]:
    said = [f"{name}={environ[name]}" for name in ALLOCATOR if "expandable_segments" in environ.get(name, "")]
    if not said:
        return []
    return [DoctorFinding("allocator", True, f"{', '.join(said)} in the shell; vime says it anew for each process")]
