"""Findings about made-up machines: one thing wrong, one finding that says so and how to mend it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from vime_ascend.doctor import UNVERIFIED, findings
from vime_ascend.probe import Sight
from vime_ascend.versions import RELEASES

from vime_core.runtime.python_process import ProcessResult

WHOLE = Sight(
    nodes=("/dev/davinci0", "/dev/davinci1"),
    manager=True,
    toolkit="/opt/cann",
    unsourced="",
    libraries=True,
    packages=dict(RELEASES[0].packages),
    autoload=True,
)


def broken(sight: Sight, **environ: str) -> list[tuple[str, str, str]]:
    return [(one.name, one.detail, one.fix) for one in findings(sight, environ, agreed) if not one.ok]


def agreed() -> ProcessResult:
    return ProcessResult("G1\n")


def test_a_whole_machine_has_nothing_to_mend_and_says_what_nobody_tried() -> None:
    found = findings(WHOLE, {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, agreed)
    assert [one.name for one in found] == ["NPUs", "versions", "weight transfer", "visible devices", "hardware"]
    assert all(one.ok for one in found)
    assert found[0].detail == "2 devices, CANN at /opt/cann"
    assert found[1].detail == "vllm-ascend 0.23 (CANN 9.1.0)"
    assert found[-1].detail == UNVERIFIED


@pytest.mark.parametrize(
    ("sight", "environ", "name", "fix"),
    [
        (replace(WHOLE, nodes=()), {}, "Ascend", "pass devices into the container"),
        (replace(WHOLE, toolkit="", libraries=True), {}, "Ascend", "install CANN 9.1.0"),
        (replace(WHOLE, packages={**WHOLE.packages, "torch": "2.9.0"}), {}, "versions", "pip install torch==2.10.0"),
        (replace(WHOLE, packages={**WHOLE.packages, "vllm": "0.32.0"}), {}, "versions", "pip install vllm==0.23.0"),
        (
            replace(WHOLE, packages={**WHOLE.packages, "vllm": "0.20.2", "vllm-ascend": "0.20.2rc1"}),
            {},
            "versions",
            "pip install -r constraints/ascend-a2.txt",
        ),
        (
            WHOLE,
            {"ASCEND_RT_VISIBLE_DEVICES": "10,9"},
            "visible devices",
            "export ASCEND_RT_VISIBLE_DEVICES=9,10",
        ),
        (WHOLE, {"ASCEND_RT_VISIBLE_DEVICES": "0,x"}, "visible devices", "unset ASCEND_RT_VISIBLE_DEVICES"),
    ],
)
def test_one_fault_is_one_finding_with_its_fix(sight: Sight, environ: dict[str, str], name: str, fix: str) -> None:
    ((found, _, mend),) = broken(sight, **environ)
    assert found == name
    assert fix in mend


def test_a_vllm_and_a_vllm_ascend_of_different_forms() -> None:
    found = findings(
        WHOLE, {}, lambda: ProcessResult("", "vLLM 0.23.0 has the weight-transfer interface G1 and vllm-ascend G3")
    )
    ((name, fix),) = [(one.name, one.fix) for one in found if not one.ok]
    assert (name, fix) == ("weight transfer", "pip install -r constraints/ascend-a2.txt")


def test_a_cann_that_is_too_old_for_handles_between_processes(tmp_path: Path) -> None:
    (tmp_path / "version.cfg").write_text("version=8.2.RC1\n")
    ((name, detail, fix),) = broken(replace(WHOLE, toolkit=str(tmp_path)))
    assert (name, detail) == ("IPC", "CANN 8.2.RC1, handles between processes need 8.3.rc1")
    assert "install CANN 8.3.rc1" in fix
    (tmp_path / "version.cfg").write_text("version=9.1.0\n")
    assert broken(replace(WHOLE, toolkit=str(tmp_path))) == []


def test_the_shells_allocator_is_mentioned_and_does_no_harm() -> None:
    found = findings(WHOLE, {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}, agreed)
    assert [one.ok for one in found if one.name == "allocator"] == [True]
