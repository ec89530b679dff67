"""A plugin broken in each of ten ways, as a real package: which line it gives, and whether the run goes on.

What breaks while it is loaded is skipped with a warning where nobody asked for it, and ends the command (status 2)
where somebody did. What breaks later ends the run, except an observer, which is counted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from vime_cli.quickstart.addition import prepare

from tests.support.runs import two_steps, vime
from vime_core.api.errors import PluginError
from vime_core.api.weight_sync import Topology
from vime_core.config.sections import Config

HOOK = "@hookimpl\ndef {0}:\n    {1}\n"
LEAVE_OUT = r"; --plugin no:broken leaves it out$"


@dataclass(frozen=True)
class Way:
    """``says`` follows "plugin 'broken' (vime-broken 1.0)"; ``{module}`` is the plugin's module."""

    code: str
    says: str
    requires: Sequence[str] = ("vime-core>=0.1,<0.2",)
    rival: bool = False


#: what shows while the plugin is loaded
WAYS = {
    "1 import error": Way(
        "import does_not_exist",
        r"import of {module}: ModuleNotFoundError: No module named 'does_not_exist'; install 'does_not_exist' in this "
        r"environment",
    ),
    "2 wrong hook name": Way(
        HOOK.format("vime_step_finnished(step)", "pass"),
        r"{module}: there is no hook 'vime_step_finnished'; did you mean 'vime_step_finished'",
    ),
    "3 wrong signature": Way(
        HOOK.format("vime_step_finished(step, loss)", "pass"),
        r"PluginValidationError: .*vime_step_finished.*'loss'.*"
        r"; vime_step_finished may take run, step, metrics",
    ),
    "4 version range": Way("pass", r"needs vime-core <0\.1, installed is \S+", requires=("vime-core<0.1",)),
    "5 duplicate name": Way(
        "pass",
        r"also claimed by vime-rival 9\.9 \(\S+\); uninstall one of them, or name the distribution: "
        r"--plugin vime-broken",
        rival=True,
    ),
    "7 raises in register": Way(
        HOOK.format("vime_register_rewards(registry)", "raise OSError('no licence')"),
        r"vime_register_rewards: OSError: no licence",
    ),
    "10 async hook": Way(
        "@hookimpl\nasync def vime_run_started(run):\n    pass\n",
        r"{module}: hook 'vime_run_started' is async; hooks are plain functions",
    ),
}


def install(world, way: Way) -> str:
    module = world.install("broken", "pass", requires=way.requires)
    (world.site / world.module("broken") / "plugin.py").write_text(f"from vime_core import hookimpl\n{way.code}\n")
    if way.rival:
        world.install("broken", dist="vime-rival", version="9.9")
    return way.says.format(module=re.escape(module))


@pytest.mark.parametrize("name", WAYS)
def test_not_asked_for_it_is_one_warning_and_the_command_goes_on(world, name: str) -> None:
    says = install(world, WAYS[name])
    done = world.vime("train", "--show-config")
    assert done.returncode == 0, done.stderr
    assert "[rollout]" in done.stdout
    mine = [line for line in done.stderr.splitlines() if "(vime-broken 1.0)" in line]
    assert len(mine) == 1, done.stderr
    assert re.match(rf"warning: plugin 'broken' \(vime-broken 1\.0\) was skipped: {says}{LEAVE_OUT}", mine[0]), mine[0]


@pytest.mark.parametrize("name", WAYS)
def test_asked_for_it_ends_the_command_with_one_line(world, name: str) -> None:
    says = install(world, WAYS[name])
    done = world.vime("train", "--show-config", "--plugin", "broken", "--plugin", "no:vime-rival")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert re.match(rf"vime: plugin 'broken' \(vime-broken 1\.0\): {says}{LEAVE_OUT}", line), line


TARGET_MISSING = """
@hookimpl
def vime_register_weight_syncs(registry):
    registry.add("lost", "vime_nowhere.sync:Sync")

@hookimpl
def vime_register_rewards(registry):
    registry.add("lost", "vime_nowhere.rewards:score")
"""


def test_6_a_missing_target_matters_once_it_is_used(world) -> None:
    world.install("broken", TARGET_MISSING)
    plugins = world.load("broken")
    assert world.warnings == []
    assert plugins.rewards.resolve("core/exact")
    with pytest.raises(PluginError) as caught:
        plugins.rewards.resolve("lost")
    assert str(caught.value) == (
        "plugin 'broken' (vime-broken 1.0) could not provide reward 'lost' from 'vime_nowhere.rewards:score': "
        "no module 'vime_nowhere'; install its package, put its folder on PYTHONPATH, or name the file: ./file.py:obj"
    )
    assert caught.value.exit_code == 2


def test_8_raising_in_configure_ends_the_run_and_names_the_plugin(world) -> None:
    world.install("broken", HOOK.format("vime_configure(config)", "raise ZeroDivisionError('by zero')"))
    with pytest.raises(PluginError) as caught:
        world.load().configure(Config())
    assert str(caught.value) == (
        "plugin 'broken' (vime-broken 1.0): vime_configure: ZeroDivisionError: by zero; "
        "run without it (--plugin no:broken) or report it to its authors"
    )


def test_8_so_does_raising_where_something_is_to_be_chosen(world) -> None:
    world.install("broken", HOOK.format("vime_choose_weight_sync(topology)", "raise ZeroDivisionError('by zero')"))
    with pytest.raises(PluginError, match=r"plugin 'broken' .*: vime_choose_weight_sync: ZeroDivisionError: by zero;"):
        world.load().choose_weight_sync(Topology("cpu", 1, 1, 1, colocated=False, external_engines=False))


OBSERVER = "raise ValueError(f'no room for step {step}')"


def test_9_a_raising_observer_is_logged_once_counted_and_told_at_the_end(world, caplog) -> None:
    world.install("broken", HOOK.format("vime_step_finished(step)", OBSERVER))
    plugins = world.load("broken")
    with caplog.at_level(logging.ERROR, logger="vime.plugins"):
        for step in range(3):
            plugins.step_finished(None, step, {})
    (record,) = caplog.records
    assert record.message == (
        "plugin 'broken' (vime-broken 1.0): vime_step_finished: ValueError: no room for step 0; "
        "the run goes on, further failures are only counted"
    )
    assert record.exc_info is not None
    assert plugins.failures() == [
        "plugin 'broken' (vime-broken 1.0): vime_step_finished failed 3 times; the run went on without it"
    ]


# the same in whole runs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return prepare(tmp_path_factory.mktemp("task"), 7)


@pytest.mark.slow
def test_a_run_survives_a_broken_plugin_and_a_raising_observer(world, task: dict[str, str]) -> None:
    world.install("broken", "import does_not_exist")
    world.install("plots", HOOK.format("vime_step_finished(step)", OBSERVER))
    done = vime(world.root, "train", *two_steps(task, reward="exact"), PYTHONPATH=str(world.site))
    assert done.code == 0, done.text
    lines = done.err.splitlines()
    assert sum(line.startswith("warning: plugin 'broken' (vime-broken 1.0) was skipped: ") for line in lines) == 1
    assert sum("ValueError: no room for step 0; the run goes on" in line for line in lines) == 1
    assert not any("no room for step 1" in line for line in lines)
    assert (
        "warning: plugin 'plots' (vime-plots 1.0): vime_step_finished failed 2 times; the run went on without it"
        in lines
    )


@pytest.mark.slow
def test_a_run_does_not_begin_when_configure_raises(world, task: dict[str, str]) -> None:
    world.install("broken", HOOK.format("vime_configure(config)", "raise ZeroDivisionError('by zero')"))
    done = vime(world.root, "train", *two_steps(task, reward="exact"), PYTHONPATH=str(world.site))
    assert done.code == 2, done.text
    assert done.complaints == [
        "plugin 'broken' (vime-broken 1.0): vime_configure: ZeroDivisionError: by zero; "
        "run without it (--plugin no:broken) or report it to its authors"
    ]
    assert not list(Path(world.root).glob("run/logs/*"))
