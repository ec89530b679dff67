"""What plugins may answer and raise at the border, and what one that nobody asked for can do to others: nothing."""

from __future__ import annotations

import signal
import threading
import time
from importlib.metadata import version

import pytest

from vime_core.api import ConfigError, DeadlineError, PluginError, Topology
from vime_core.config import Config
from vime_core.plugin import hook_calls, loading
from vime_core.plugin.border import describe, short
from vime_core.runtime import time_limit

TOPOLOGY = Topology("cpu", trainer_ranks=1, engines=1, nodes=1, colocated=False, external_engines=False)


def hook(signature: str, body: str) -> str:
    return f"import sys\n@hookimpl\ndef {signature}:\n    {body}\n"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("7", "returned int 7"),
        ("['gloo']", "returned list ['gloo']"),
        ("('gloo', 1)", "returned tuple ('gloo', 1)"),
        ("''", "returned str ''"),
    ],
)
def test_a_weight_sync_is_chosen_by_name(world, answer, told) -> None:
    world.install("odd", hook("vime_choose_weight_sync(topology)", f"return {answer}"))
    with pytest.raises(PluginError) as caught:
        world.load().choose_weight_sync(TOPOLOGY)
    assert str(caught.value).startswith(
        f"plugin 'odd' (vime-odd 1.0): vime_choose_weight_sync: {told}: it must return the name of a weight sync, "
        "or None; run without it (--plugin no:odd)"
    )


@pytest.mark.parametrize("answer", ["['A']", "{'A': 1}", "{1: 'A'}", "'A=1'", "{'A': None}", "7"])
def test_variables_are_a_mapping_of_texts(world, answer) -> None:
    world.install("odd", hook("vime_worker_environment(role)", f"return {answer}"))
    with pytest.raises(PluginError) as caught:
        world.load().worker_environment("trainer", Config())
    assert str(caught.value).startswith("plugin 'odd' (vime-odd 1.0): vime_worker_environment: returned ")
    assert "it must return a mapping of names of variables to texts, or None" in str(caught.value)


@pytest.mark.parametrize("answer", ["['too small']", "False", "'no'", "config"])
def test_a_configuration_is_refused_by_raising(world, answer) -> None:
    world.install("odd", hook("vime_configure(config)", f"return {answer}"))
    with pytest.raises(PluginError, match=r"plugin 'odd' \(vime-odd 1.0\): vime_configure: returned .*: it must ret"):
        world.load().configure(Config())


def test_a_registration_that_returns_its_names_registers_nothing(world) -> None:
    world.install("odd", hook("vime_register_rewards(registry)", "return {'mine': 'm:f'}"))
    world.load()
    (line,) = world.warnings
    assert "plugin 'odd' (vime-odd 1.0) was skipped: vime_register_rewards: returned dict {'mine': 'm:f'}" in line


@pytest.mark.parametrize(
    ("signature", "call"),
    [
        ("vime_configure(config)", lambda p: p.configure(Config())),
        ("vime_worker_environment(role)", lambda p: p.worker_environment("engine", Config())),
        ("vime_choose_weight_sync(topology)", lambda p: p.choose_weight_sync(TOPOLOGY)),
    ],
)
def test_sys_exit_in_a_hook_is_its_error(world, signature, call) -> None:
    world.install("odd", hook(signature, "sys.exit(0)"))
    name = signature.partition("(")[0]
    with pytest.raises(PluginError, match=rf"plugin 'odd' \(vime-odd 1.0\): {name}: SystemExit: 0; run without it"):
        call(world.load())


def test_a_config_error_of_another_hook_is_that_hooks_error(world) -> None:
    world.install(
        "odd", "from vime_core.api import ConfigError\n" + hook("vime_worker_environment()", "raise ConfigError('x')")
    )
    with pytest.raises(PluginError, match="vime_worker_environment: x; run without it"):
        world.load().worker_environment("engine", Config())


STUBBORN = """
while True:
    try:
        pass
    except Exception:
        pass
"""


# a plugin that nobody asked for ----------------------------------------------------------------------------------
REWARD = "@hookimpl\ndef vime_register_rewards(registry):\n    registry.add('{0}', 'json:dumps')\n"


@pytest.mark.parametrize("body", ["raise OSError('no driver')", "sys.exit(1)", "return 3"])
def test_one_that_fails_as_the_process_starts_is_left_out_with_one_warning(world, names, body) -> None:
    world.install("bad", REWARD.format("bad_one") + hook("vime_process_started(role)", body))
    world.install("good", REWARD.format("good_one"))
    plugins = world.load()
    plugins.process_started("driver")
    plugins.process_started("driver")
    assert names(plugins) == ["core", "good"]
    (line,) = world.warnings
    assert line.startswith("plugin 'bad' (vime-bad 1.0) was left out: vime_process_started: ")
    assert line.endswith("; --plugin no:bad leaves it out without this warning")
    assert "good_one" in plugins.rewards.names()
    assert [record["name"] for record in plugins.lock()] == ["core", "good"]
    plugins.configure(Config())
    with pytest.raises(PluginError, match=r"no reward named 'bad_one': plugin 'bad' .* was left out: vime_proc"):
        plugins.rewards.get("bad_one")


def test_one_that_hangs_as_the_process_starts_is_left_out(world, names, monkeypatch) -> None:
    monkeypatch.setattr(hook_calls, "_ASKED", 0.2)
    world.install("slow", hook("vime_process_started(role)", "import time; time.sleep(60)"))
    plugins = world.load()
    plugins.process_started("driver")
    assert names(plugins) == ["core"]
    assert "was left out: vime_process_started: it did not end within 0.2 s" in world.warnings[0]


def test_it_is_an_error_where_it_was_asked_for_or_plugins_are_strict(world) -> None:
    world.install("bad", hook("vime_process_started(role)", "raise OSError('no driver')"))
    for plugins in (world.load("bad"), world.load(strict=True)):
        with pytest.raises(PluginError, match=r"'bad' \(vime-bad 1.0\): vime_process_started: OSError: no driver"):
            plugins.process_started("driver")


@pytest.mark.parametrize("code", ["import time\ntime.sleep(60)\n", STUBBORN])
def test_one_whose_import_hangs_is_skipped_with_its_module(world, names, monkeypatch, code) -> None:
    monkeypatch.setattr(loading, "INSTALLED_SECS", 0.2)
    module = world.install("slow", code)
    assert names(world.load()) == ["core"]
    assert world.warnings == [
        f"plugin 'slow' (vime-slow 1.0) was skipped: import of {module} did not end within 0.2 s; "
        "--plugin no:slow leaves it out"
    ]


def test_an_import_that_hangs_and_was_asked_for_is_an_error(world, monkeypatch) -> None:
    monkeypatch.setattr(loading, "ASKED_SECS", 0.2)
    module = world.install("slow", "import time\ntime.sleep(60)\n")
    with pytest.raises(PluginError, match=rf"'slow' \(vime-slow 1.0\): import of {module} did not end within 0.2 s"):
        world.load("slow")


def test_whose_a_name_or_a_path_is(world) -> None:
    world.install("mine", REWARD.format("mine_too"))
    rewards = world.load().rewards
    assert rewards.source("mine_too") == rewards.source("mine/mine_too") == " of plugin 'mine' (vime-mine 1.0)"
    assert rewards.source("exact") == rewards.source("./r.py:score") == rewards.source("no_such_module:score") == ""
    assert rewards.source("pluggy._hooks:HookimplMarker") == f" (pluggy {version('pluggy')})"


# what the border is made of --------------------------------------------------------------------------------------
def test_a_limit_leaves_the_alarm_of_others_alone() -> None:
    rung = threading.Event()
    old = signal.signal(signal.SIGALRM, lambda signum, frame: rung.set())
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(DeadlineError, match=r"the nap did not end within 0\.05 s"), time_limit(0.05, "the nap"):
            time.sleep(30)
        assert rung.wait(30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_a_limit_breaks_through_code_that_catches_everything() -> None:
    def nap() -> None:
        try:
            time.sleep(30)
        except Exception:
            pytest.fail("it was told")

    with pytest.raises(DeadlineError), time_limit(0.05, "the nap"):
        nap()


def test_a_value_whose_repr_raises_can_be_shown() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    assert short(Odd()) == "Odd (its repr raised ValueError)"


def test_an_error_is_described_by_its_own_line() -> None:
    with pytest.raises(ConfigError) as caught:
        raise ConfigError("no\n  good")
    assert describe(caught.value, __file__).startswith(f"ConfigError at {__file__}:")
    assert describe(caught.value, __file__).endswith(": no good")
