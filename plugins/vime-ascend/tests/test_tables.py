"""Chips, port slices and versions."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from vime_ascend.chips import chip_named, chip_of
from vime_ascend.ports import slices
from vime_ascend.versions import RELEASES, at_least, cann_version, faults, known

from vime_core.api.errors import ConfigError


@pytest.mark.parametrize(
    ("device", "chip", "devices"),
    [
        ("Ascend910B1", "A2", 8),
        ("Ascend910B4-1", "A2", 8),
        ("Ascend910_9391", "A3", 16),
        ("Ascend950DT_9582", "A5", None),
    ],
)
def test_device_names_have_a_generation(device: str, chip: str, devices: int | None) -> None:
    found = chip_of(device)
    assert found is not None
    assert (found.name, found.devices, found.experimental) == (chip, devices, chip == "A5")
    assert chip_named(chip.lower()) is found


@pytest.mark.parametrize("name", ["Ascend310P3", "Ascend910A", "NVIDIA H200", ""])
def test_other_devices_have_none(name: str) -> None:
    assert chip_of(name) is None


def test_slices_of_ports_are_disjoint_and_inside() -> None:
    found = slices("60000-60999")
    ranges = sorted(one for part in found.values() for one in (part.host, part.npu))
    assert ranges[0][0] == 60000
    assert ranges[-1][1] <= 60999
    assert all(first < second[0] for (_, first), second in itertools.pairwise(ranges))
    assert all(last - first + 1 == 250 for first, last in ranges)


@pytest.mark.parametrize("text", ["60000", "60000-60100", "60999-60000", "80-2000", "60000-70000", "a-b"])
def test_ranges_that_cannot_be_divided(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--ascend-hccl-ports {text}"):
        slices(text)


def test_published_sets_hold_together_and_are_recognised() -> None:
    for release in RELEASES:
        assert faults(release.packages) == []
        assert known(release.packages) is not None
    built_here = {"torch": "2.10.0+cpu", "torch-npu": "2.10.0.post7", "vllm": "0.23.0", "vllm-ascend": "0.23.0.post1"}
    assert known(built_here) is RELEASES[0]


def test_what_does_not_belong_together_is_said_with_the_fix() -> None:
    packages = {"torch": "2.13.0", "torch-npu": "2.10.0.post4", "vllm": "0.32.0", "vllm-ascend": "0.23.0"}
    first, second = faults(packages)
    assert first == "torch-npu 2.10.0.post4 is made for torch 2.10, here is 2.13.0: pip install torch==2.10.0"
    assert second.endswith("pip install vllm==0.23.0")
    assert known(packages) is None


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("aarch64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=8.3.RC1\n", "8.3.RC1"),
        ("version.cfg", "# by the installer\nversion=9.1.0\n", "9.1.0"),
    ],
)
def test_cann_says_its_version_in_a_file(tmp_path: Path, file: str, text: str, version: str) -> None:
    assert cann_version(str(tmp_path)) is None
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert cann_version(str(tmp_path)) == version


def test_candidates_are_older_than_their_release() -> None:
    assert at_least("9.1.0", "8.3.rc1")
    assert not at_least("8.3.rc1", "8.3")
    assert not at_least("to be announced", "8.3.rc1")
