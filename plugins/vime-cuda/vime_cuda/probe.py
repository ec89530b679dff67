"""Is an NVIDIA device here, and can this release use it? Looks at files only; torch is never imported."""

from __future__ import annotations

import shutil
from pathlib import Path


def present(devices: Path = Path("/dev")) -> tuple[bool, str]:
    """(can vime run on it, why or why not)."""
    nodes = sorted(str(node) for node in devices.glob("nvidia[0-9]*"))
    if not nodes:
        driver = "nvidia-smi is there" if shutil.which("nvidia-smi") else "no nvidia-smi on PATH"
        return False, f"no NVIDIA device: no {devices}/nvidia*, {driver}"
    return False, f"{', '.join(nodes)} found, but this release of vime-cuda has no backend to run on it yet"
