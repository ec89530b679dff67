"""Plugins that do not fit or do not load: what is only installed is a warning, what was asked for is broken."""

from __future__ import annotations

import pytest
from vime_cli.doctor import plugins
from vime_cli.doctor.context import DoctorContext

from vime_core.api.device import DoctorFinding


def look(*specs: str) -> list[DoctorFinding]:
    return [one for one in plugins.look(DoctorContext(specs)) if one.status != "ok"]


def test_a_plugin_that_fits_is_named_with_its_range(world) -> None:
    world.install("fits", "pass")
    (found,) = [one for one in plugins.look(DoctorContext()) if "vime-fits" in one.detail]
    assert (found.status, found.name) == ("ok", "range")
    assert found.detail == "plugin 'fits' (vime-fits 1.0) fits: vime-core <0.2,>=0.1"


@pytest.mark.parametrize(("asked", "status", "name"), [(False, "warning", "loading"), (True, "broken", "requested")])
@pytest.mark.parametrize(
    ("code", "requires", "says"),
    [
        ("pass", ["vime-core<0.1"], "needs vime-core <0.1, installed is"),
        ("import does_not_exist", ["vime-core>=0.1,<0.2"], "No module named 'does_not_exist'"),
        ("@hookimpl\ndef vime_register_rewards(registry):\n    raise OSError('no licence')", [], "OSError: no licence"),
    ],
)
def test_one_that_does_not_load(world, code, requires, says, asked, status, name) -> None:
    world.install("broken", code, requires=requires)
    (found,) = look("broken") if asked else look()
    assert (found.status, found.name) == (status, name)
    assert "plugin 'broken' (vime-broken 1.0)" in found.detail
    assert says in found.detail
    assert found.fix


@pytest.mark.parametrize(("asked", "status"), [(False, "warning"), (True, "broken")])
def test_what_it_requires_and_is_not_here(world, asked: bool, status: str) -> None:
    world.install("needy", "pass", requires=["vime-core>=0.1", "pluggy>=99", "abacus-driver==2.0", "typer>=0.1"])
    (found,) = look("needy") if asked else look()
    assert (found.status, found.name) == (status, "range")
    assert "pluggy 1" in found.detail
    assert "needed is >=99; abacus-driver is not installed" in found.detail
    assert found.fix == "pip install 'pluggy>=99'; pip install 'abacus-driver==2.0'"


def test_a_name_that_nobody_has(world) -> None:
    (found,) = look("nope")
    assert (found.status, found.detail) == ("broken", "no plugin named 'nope'")


def test_a_plugin_of_one_file(world) -> None:
    world.write("mine.py", "def score(sample):\n    return 1.0\n")
    found = list(plugins.look(DoctorContext(("./mine.py",))))
    assert any(one.ok and one.detail.startswith("plugin 'mine' loads from /") for one in found)
