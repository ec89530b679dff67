"""``docs/doctor.md`` has a section for each check, in order, and a line for each finding that the code can make."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from vime_cli.doctor import imports
from vime_cli.doctor.doctor import CHECKS, Check

TEXT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))


def names_in(check: Check) -> set[str]:
    """First arguments of ``DoctorFinding(...)`` in the check's module, where they are written out."""
    module = inspect.getmodule(check.look)
    assert module is not None
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call)]
    made = [
        call.args[0]
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "DoctorFinding" and call.args
    ]
    return {node.value for node in made if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_sections_are_the_checks() -> None:
    assert list(SECTIONS) == [check.name for check in CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_finding_has_its_line(check: Check) -> None:
    for name in names_in(check):
        assert f"`{name}`" in SECTIONS[check.name]


def test_every_module_that_is_imported_is_named() -> None:
    assert re.findall(r"`(\w+)`", SECTIONS["imports"])[: len(imports.MODULES)] == list(imports.MODULES)


def test_the_findings_are_found() -> None:
    assert sum(len(names_in(check)) for check in CHECKS) >= 15


def test_every_flag_of_the_command_is_named() -> None:
    source = (Path(__file__).parents[2] / "cli" / "vime_cli" / "doctor" / "cli.py").read_text("utf-8")
    flags = re.findall(r'add\("(--[a-z-]+)"', source)
    assert len(flags) == 7
    assert all(flag in TEXT for flag in flags)
