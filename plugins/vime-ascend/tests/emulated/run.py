"""``make test-npu-emu``: the real torch-npu wheel over an emulated CANN, on a machine without an NPU.

    python run.py FOLDER [pytest arguments]

FOLDER keeps the wheels, unpacked, and the libraries, built by gcc from the C beside this file. Nothing is installed
into the environment that runs it: torch-npu beside torch would break ``import torch`` there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
#: distribution -> version; torch-npu's has to be torch's. Of vllm-ascend only the communicator is used
WHEELS = {"torch-npu": "2.13.0", "vllm-ascend": "0.22.1rc1"}
LIBRARIES = {
    "libascendcl": ("runtime.c", "memory.c", "operators.c", "inert.c"),
    "libacl_op_compiler": ("compiler.c",),
    "libhccl": ("hccl.c",),
    "libge_runner": (),
    "libgraph": (),
    "libacl_tdt_channel": (),
}
BANNER = """\
The real torch-npu over an emulated CANN: this proves which calls are made, in which order, with which sizes and types.
It proves nothing about kernels, their numerics, streams, speed, HCCL's resources, links between machines or graphs."""


def main(folder: Path, arguments: list[str]) -> int:
    print(BANNER, flush=True)
    sites = [unpacked(folder, name, version) for name, version in WHEELS.items()]
    environ = {**os.environ, **environment(built(folder / "lib"), sites)}
    tests = sorted(str(file) for file in HERE.glob("emu_*.py"))
    command = [sys.executable, "-m", "pytest", "-W", "ignore", "-p", "no:cacheprovider", *(arguments or tests)]
    return subprocess.run(command, cwd=ROOT, env=environ).returncode


def unpacked(folder: Path, name: str, version: str) -> Path:
    """The wheel's files, fetched once."""
    place = folder / f"{name}-{version}"
    if place.is_dir():
        return place
    wheels = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(wheels)]
    subprocess.run([*pip, f"{name}=={version}"], check=True)
    (wheel,) = wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    partial = place.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    partial.rename(place)
    wheel.unlink()
    return place


def built(folder: Path) -> Path:
    """The libraries, built afresh (a second)."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    for name, sources in LIBRARIES.items():
        target = [f"-Wl,-soname,{name}.so", "-o", str(folder / f"{name}.so")]
        files = [str(HERE / source) for source in sources] or ["-x", "c", os.devnull]
        subprocess.run([*compiler, *target, *files, "-lpthread", "-lrt"], check=True)
    return folder


def environment(libraries: Path, sites: list[Path]) -> dict[str, str]:
    path = [*map(str, sites), str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "HCCL_SO_PATH": str(libraries / "libhccl.so"),
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        # without it errors of operators come up somewhere else
        "TASK_QUEUE_ENABLE": "0",
        "ASCEND_RT_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
