"""Which versions go together, and which do not. Sets that somebody published and runs; vime has run none on an NPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Release:
    """One published set. Distribution -> version, as pip knows it; ``cann`` and ``driver`` are the platform's."""

    name: str
    chips: tuple[str, ...]
    cann: str
    packages: Mapping[str, str]
    experimental: bool = False


#: newest first; the first set that a chip is in is the one that docker/Dockerfile.npu builds
RELEASES = (
    Release(
        "vllm-ascend 0.23",
        ("A2", "A3"),
        "9.1.0",
        {"torch": "2.10.0", "torch-npu": "2.10.0.post4", "vllm": "0.23.0", "vllm-ascend": "0.23.0"},
    ),
    Release(
        "vllm-ascend 0.23 on A5",
        ("A5",),
        "9.1.0",
        {"torch": "2.10.0", "torch-npu": "2.10.0.post4", "vllm": "0.23.0", "vllm-ascend": "0.23.0"},
        experimental=True,
    ),
    Release(
        "vllm-ascend 0.22",
        ("A2", "A3"),
        "9.0.0",
        {"torch": "2.10.0", "torch-npu": "2.10.0", "vllm": "0.22.1", "vllm-ascend": "0.22.1rc1"},
    ),
)

#: IPC handles between processes need these
IPC_DRIVER, IPC_CANN = "25.3.rc1", "8.3.rc1"


def faults(packages: Mapping[str, str]) -> list[str]:
    """What of the installed packages cannot work together, a line each. Missing packages are the probe's business."""
    found = []
    torch, npu = packages.get("torch"), packages.get("torch-npu")
    if torch and npu and _minor(torch) != _minor(npu):
        found.append(
            f"torch-npu {npu} is made for torch {_minor(npu)}, here is {torch}: pip install torch=={_base(npu)}"
        )
    vllm, ascend = packages.get("vllm"), packages.get("vllm-ascend")
    if vllm and ascend and _base(vllm) != _base(ascend):
        found.append(
            f"vllm-ascend {ascend} takes over vLLM {_base(ascend)} and no other, here is {vllm}: "
            f"pip install vllm=={_base(ascend)}"
        )
    return found


def known(packages: Mapping[str, str]) -> Release | None:
    """The published set that the installed packages are, or None."""
    for release in RELEASES:
        pairs = [(packages.get(name), wanted) for name, wanted in release.packages.items()]
        if all(have is not None and _base(have) == _base(wanted) for have, wanted in pairs):
            return release
    return None


def cann_version(toolkit: str) -> str | None:
    """CANN's version as its own files say it, e.g. "9.1.0"; None where they do not."""
    folder = Path(toolkit)
    candidates = [folder / "version.cfg", *sorted(folder.glob("*-linux/ascend_toolkit_install.info"))]
    for file in (path for path in candidates if path.is_file()):
        match = re.search(r"^version\s*=\s*([\w.]+)", file.read_text(), re.M)
        if match:
            return match.group(1)
    return None


def at_least(have: str, wanted: str) -> bool:
    """Release candidates are lower than their release. A version that cannot be read is not at least anything."""
    try:
        return Version(have) >= Version(wanted)
    except InvalidVersion:
        return False


def _base(version: str) -> str:
    """Without what comes after the release: "2.10.0.post4" is of 2.10.0, "0.22.1rc1" of 0.22.1."""
    return Version(version).base_version


def _minor(version: str) -> str:
    return ".".join(map(str, Version(version).release[:2]))
