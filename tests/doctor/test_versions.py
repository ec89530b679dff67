"""Versions: one package that differs, is missing, or is out of a declared range, and the finding that says so."""

from __future__ import annotations

import platform
from importlib import metadata

from vime_cli.doctor import versions
from vime_cli.doctor.context import DoctorContext
from vime_cli.doctor.matrix import Matrix

from vime_core.api.device import DoctorFinding

HERE = {name: metadata.version(name) for name in ("torch", "ray", "numpy", "pluggy", "packaging")}


def look(tested: dict[str, str]) -> list[DoctorFinding]:
    return [one for one in versions.look(DoctorContext(matrix=Matrix({"cpu": tested}))) if one.name != "python"]


def as_text(found: list[DoctorFinding]) -> list[tuple[str, str, str]]:
    return [(one.status, one.detail, one.fix) for one in found]


def test_what_was_tested_together_is_named_and_well() -> None:
    assert as_text(look(HERE)) == [
        ("ok", f"torch {HERE['torch']}", ""),
        ("ok", f"ray {HERE['ray']}", ""),
        ("ok", f"numpy {HERE['numpy']}", ""),
        ("ok", "2 other packages as tested", ""),
    ]


def test_another_version_of_the_stack_is_a_warning_with_the_tested_one() -> None:
    found = [one for one in look({**HERE, "ray": "2.1.0"}) if one.status != "ok"]
    detail = f"ray {HERE['ray']}, tested with 2.1.0"
    assert as_text(found) == [("warning", detail, "pip install 'ray==2.1.0'")]


def test_other_packages_that_differ_share_a_line_and_are_all_in_its_items() -> None:
    tested = {**HERE, "pluggy": "0.1", "packaging": "0.2", "typer": "0.3", "rich": "0.4", "not-there": "1.0"}
    (found,) = [one for one in look(tested) if one.status != "ok"]
    assert found.detail.startswith(f"5 of 5 other packages differ: pluggy {HERE['pluggy']}, tested with 0.1; ")
    assert found.fix == "pip install --no-deps -r constraints/cpu.txt"
    assert len(found.items) == 5
    assert "not-there is not installed, tested with 1.0" in found.items


def test_a_device_without_a_tested_set_is_a_warning(world) -> None:
    world.write("abacus.py", ABACUS)
    found = list(versions.look(DoctorContext(("./abacus.py",))))
    assert found[-1].status == "warning"
    assert found[-1].detail == "no set of versions was tested for device type 'abacus'"


ABACUS = """
from vime_core import hookimpl
from vime_core.devices.cpu import CpuBackend

class Abacus(CpuBackend):
    device_type = "abacus"

@hookimpl
def vime_register_device_backends(registry):
    registry.add("abacus", Abacus, priority=99)
"""


def test_out_of_a_declared_range_is_broken(world) -> None:
    """An older ray lies before the installed one on the path, as after a careless pip install --target."""
    world.write("site/ray-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ray\nVersion: 1.0\n")
    found = [one for one in look(HERE) if one.status != "ok"]
    requires = [one.partition(";")[0] for one in metadata.requires("vime-core") or ()]
    (needed,) = {one.removeprefix("ray") for one in requires if one.startswith("ray")}
    assert as_text(found) == [("broken", f"ray 1.0, needed is {needed}", f"pip install 'ray{needed}'")]


def test_another_python_is_a_warning() -> None:
    found = versions.python("3.1")
    assert (found.status, found.fix) == ("warning", "python3.1 -m venv .venv, and install there")
    assert found.detail == f"Python {platform.python_version()}, tested with 3.1"
