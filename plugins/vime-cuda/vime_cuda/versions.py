"""Which versions go together: the set this plugin was written against, and what driver a CUDA release needs.

Drivers: NVIDIA's table of minor-version compatibility, by the major version that torch was built for. No set has been
run on a GPU by vime's authors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: distribution -> version, as constraints/cuda.txt has it
RELEASE: Mapping[str, str] = {"torch": "2.13.0", "vllm": "0.32.0", "megatron-core": "0.16.1"}

#: Transformer Engine that megatron-core 0.16.1 says it was made for: from, and below
TRANSFORMER_ENGINE = ("2.9", "2.12")
#: it is compiled against the torch that is installed
INSTALL_ENGINE = "pip install --no-build-isolation 'transformer-engine[pytorch,core_cu13]>=2.9,<2.12'"

#: CUDA's major version -> oldest driver that runs programs built for it, on Linux
DRIVERS: Mapping[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def numbers(version: str) -> tuple[int, ...]:
    """ "580.82.07" is (580, 82, 7); what follows the numbers is left out."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def driver_fault(driver: str, cuda: str) -> str:
    """Why the driver cannot run what was built for ``cuda`` ("13.0"); empty where it can, or where nobody knows."""
    have, oldest = numbers(driver), DRIVERS.get((numbers(cuda) or (0,))[0])
    if not have or oldest is None or have >= numbers(oldest):
        return ""
    return f"NVIDIA driver {driver} is too old for torch's CUDA {cuda}: install driver {oldest} or later"


def faults(packages: Mapping[str, str]) -> list[str]:
    """Installed packages that are not of the tested set, a line each. What is missing is the probe's business."""
    found = [
        f"{name} {packages[name]}; this plugin was written against {wanted}: pip install {name}=={wanted}"
        for name, wanted in RELEASE.items()
        if name in packages and numbers(packages[name])[:3] != numbers(wanted)
    ]
    engine, (first, end) = packages.get("transformer-engine"), TRANSFORMER_ENGINE
    if engine is not None and not numbers(first) <= numbers(engine) < numbers(end):
        found.append(
            f"transformer-engine {engine}; megatron-core was made for {first} to below {end}: {INSTALL_ENGINE}"
        )
    return found
