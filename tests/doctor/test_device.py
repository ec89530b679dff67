"""Devices: which one is looked at, what its probe and its backend say, and backends that break while they look."""

from __future__ import annotations

import pytest
from vime_cli.doctor import device, link, shims
from vime_cli.doctor.context import DoctorContext

from vime_core.api.device import DoctorFinding

PLUGIN = """
import os
from vime_core import hookimpl
from vime_core.devices.cpu import CpuBackend
from vime_core.api.device import DoctorFinding

class Abacus(CpuBackend):
    device_type = "abacus"

    def doctor(self):
        {doctor}

def present():
    {probe}

@hookimpl
def vime_register_device_backends(registry):
    registry.add("abacus", "{module}:Abacus", priority=10, available=present)
"""
SAYS = """return [
            DoctorFinding("beads", False, "7 of 10 beads", "thread 3 more", items=("bead 8",)),
            DoctorFinding("frame", True, "oak"),
        ]"""


def look(
    world, doctor: str = "return []", probe: str = "return True, 'ten rows'", asked: bool = True
) -> list[DoctorFinding]:
    module = world.install("abacus", "pass")
    text = PLUGIN.format(doctor=doctor, probe=probe, module=module)
    (world.site / world.module("abacus") / "plugin.py").write_text(text)
    return list(device.look(DoctorContext(("abacus",) if asked else ())))


def test_the_requested_plugins_device_its_probe_and_its_own_findings(world) -> None:
    found = look(world, SAYS)
    assert [(one.name, one.status, one.detail, one.fix) for one in found[:3]] == [
        ("device", "ok", "abacus/abacus: ten rows", ""),
        ("beads", "broken", "7 of 10 beads", "thread 3 more"),
        ("frame", "ok", "oak", ""),
    ]
    assert found[1].items == ("bead 8",)
    assert any(one.detail.startswith("core/cpu: available too: ") for one in found)


def test_without_a_request_the_device_of_the_highest_priority(world) -> None:
    assert look(world, asked=False)[0].detail == "abacus/abacus: ten rows"


def test_a_requested_device_that_is_not_here_still_looks(world) -> None:
    found = look(world, SAYS, "return False, 'no frame on the desk; put one there\\nno beads'")
    assert found[0].status == "broken"
    assert found[0].detail.startswith("abacus/abacus cannot run here: no frame on the desk; put one there (and 1 more")
    assert found[0].items == ("no frame on the desk; put one there", "no beads")
    assert found[1].name == "beads"


def test_what_needs_the_device_is_not_tried_without_it(world) -> None:
    look(world, probe="return False, 'no beads'")
    context = DoctorContext(("abacus",))
    assert [one.detail for one in link.look(context)] == ["not tried: there is no device"]
    assert next(iter(shims.look(context))).detail == "not looked at: there is no device"


@pytest.mark.parametrize(
    ("doctor", "says"),
    [
        ("raise OSError('beads stuck')", "abacus/abacus could not look: OSError: beads stuck"),
        ("os.abort()", "abacus/abacus could not look: crashed with SIGABRT"),
        ("os._exit(3)", "abacus/abacus could not look: exit status 3"),
    ],
)
def test_a_backend_that_breaks_while_it_looks(world, doctor: str, says: str) -> None:
    found = look(world, doctor)
    assert [one.detail for one in found if one.status == "broken"] == [says]


def test_a_probe_that_raises(world) -> None:
    found = look(world, probe="raise OSError('no permission')")
    assert found[0].status == "broken"
    assert "its probe raised OSError: no permission" in found[0].detail


def test_a_target_that_cannot_be_loaded(world) -> None:
    world.install("abacus", "pass")
    text = PLUGIN.format(doctor="pass", probe="return True, ''", module="nowhere.backend")
    (world.site / world.module("abacus") / "plugin.py").write_text(text)
    found = [one for one in device.look(DoctorContext(("abacus",))) if not one.ok]
    assert [one.status for one in found] == ["broken"]
    assert "no module 'nowhere'" in found[0].detail


def test_a_device_that_nobody_registered() -> None:
    found = list(device.look(DoctorContext(device_name="abacus")))
    assert found[0].status == "broken"
    assert found[0].detail.startswith("no device backend named 'abacus'")


def test_two_devices_of_one_priority(world) -> None:
    for name in ("one", "two"):
        world.install(
            name,
            "@hookimpl\ndef vime_register_device_backends(registry):\n"
            f"    registry.add('{name}', 'vime_core.devices.cpu:CpuBackend', priority=77)\n",
        )
    found = list(device.look(DoctorContext()))
    assert found[0].status == "broken"
    assert "several device backends of priority 77 can run here: one/one, two/two" in found[0].detail
