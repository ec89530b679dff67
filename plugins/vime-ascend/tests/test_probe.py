"""What the probe sees on made-up machines, and the lines that it says about each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from vime_ascend.probe import Sight, device_nodes, look, missing

WHOLE = {"torch": "2.10.0", "torch-npu": "2.10.0.post4", "vllm": "0.23.0", "vllm-ascend": "0.23.0"}


def machine(
    root: Path, devices: int = 0, libraries: bool = False, packages: Mapping[str, str] = WHOLE, **environ: str
) -> Sight:
    (root / "dev").mkdir(parents=True, exist_ok=True)
    for number in range(devices):
        (root / f"dev/davinci{number}").touch()
    if devices:
        (root / "dev/davinci_manager").touch()
    if libraries:
        (root / "lib").mkdir()
        (root / "lib/libhccl.so").touch()
        environ |= {"LD_LIBRARY_PATH": f"/nowhere:{root}/lib", "ASCEND_HOME_PATH": str(root / "cann")}
    return look(root, environ, lambda: packages)


def test_a_whole_machine_lacks_nothing(tmp_path: Path) -> None:
    sight = machine(tmp_path, devices=12, libraries=True)
    assert missing(sight) == []
    assert [Path(node).name for node in sight.nodes[9:]] == ["davinci9", "davinci10", "davinci11"]


def test_a_bare_machine_gets_a_line_for_each_part(tmp_path: Path) -> None:
    lines = missing(machine(tmp_path, packages={}))
    begins = ("no Ascend NPU", "no CANN", "torch is not", "torch-npu is not", "vllm is not", "vllm-ascend is not")
    assert [line.startswith(begin) for line, begin in zip(lines, begins, strict=True)] == [True] * 6
    assert all("install" in line and "\n" not in line for line in lines)


def test_a_driver_without_devices_is_a_container_without_them(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci_manager").touch()
    assert "--device=/dev/davinci0" in missing(machine(tmp_path))[0]


def test_a_cann_that_is_installed_and_not_sourced_is_named(tmp_path: Path) -> None:
    script = tmp_path / "usr/local/Ascend/ascend-toolkit/set_env.sh"
    script.parent.mkdir(parents=True)
    script.touch()
    lines = missing(machine(tmp_path, devices=8))
    assert lines[0] == f"no CANN in the environment: it is installed, so source {script}"


def test_a_toolkit_whose_libraries_are_not_on_the_path(tmp_path: Path) -> None:
    (line, torch) = missing(machine(tmp_path, devices=8, ASCEND_HOME_PATH="/opt/cann"))
    assert line.startswith("no libhccl.so on LD_LIBRARY_PATH although ASCEND_HOME_PATH=/opt/cann")
    assert torch.startswith("`import torch` fails here")


@pytest.mark.parametrize(
    ("packages", "autoload", "libraries", "broken"),
    [
        (WHOLE, "1", False, True),
        (WHOLE, "0", False, False),
        (WHOLE, "1", True, False),
        ({"torch": "2.10.0"}, "1", False, False),
    ],
)
def test_torch_that_cannot_be_imported_is_told_apart(tmp_path, packages, autoload, libraries, broken) -> None:
    sight = machine(tmp_path, libraries=libraries, packages=packages, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert sight.broken_torch is broken
    assert any("`import torch` fails here" in line for line in missing(sight)) is broken


def test_only_numbered_nodes_are_devices(tmp_path: Path) -> None:
    for name in ("davinci2", "davinci10", "davinci_manager", "davinci1.bak"):
        (tmp_path / name).touch()
    assert [Path(node).name for node in device_nodes(tmp_path)] == ["davinci2", "davinci10"]


def test_asking_for_the_plugin_without_an_npu_ends_before_torch_is_imported(tmp_path: Path) -> None:
    """The command itself, in a process of its own; what it had imported by then is in its last line."""
    code = (
        "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); from vime_cli.main import main; "
        "sys.argv = ['vime', 'train', '--plugin', 'ascend', '--lr', '1e-6']; sys.exit(main())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    if device_nodes():
        pytest.skip("there is an NPU here")
    assert run.returncode == 2
    lines = run.stderr.splitlines()
    assert lines[0] == "vime: no requested device backend is available here; tried: ascend/ascend:"
    assert [line.split(":")[0] for line in lines[1:3]] == ["  no Ascend NPU", "  no CANN"]
    assert lines[-1].startswith("say --device to run on another: core/cpu")
    assert run.stdout.splitlines()[-1] == "False"
