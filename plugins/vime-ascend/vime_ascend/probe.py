"""Is an Ascend NPU here, and can this release use it? Looks at files and variables only; torch is never imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def present(devices: Path = Path("/dev"), environ: Mapping[str, str] | None = None) -> tuple[bool, str]:
    """(can vime run on it, why or why not)."""
    environ = os.environ if environ is None else environ
    nodes = sorted(str(node) for node in devices.glob("davinci[0-9]*"))
    toolkit = environ.get("ASCEND_HOME_PATH", "")
    if not nodes:
        cann = f"CANN is at {toolkit}" if toolkit else "ASCEND_HOME_PATH is not set"
        return False, f"no Ascend NPU: no {devices}/davinci*, {cann}"
    if not toolkit:
        return False, f"{', '.join(nodes)} found, but ASCEND_HOME_PATH is not set: source the set_env.sh of CANN"
    return False, f"{', '.join(nodes)} found, but this release of vime-ascend has no backend to run on it yet"
