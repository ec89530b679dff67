"""The typed facade: registration of every kind, choice, environment, observation, and which plugin an error names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from vime_core.api.errors import ConfigError, PluginError
from vime_core.api.weight_sync import Topology
from vime_core.config.sections import Config

ONE_NODE = Topology("cpu", trainer_ranks=1, engines=1, nodes=1, colocated=False, external_engines=False)
TWO_NODES = Topology("cpu", trainer_ranks=2, engines=1, nodes=2, colocated=False, external_engines=False)


def device(name: str, answer: str, priority: int = 30) -> str:
    return f"""
@hookimpl
def vime_register_device_backends(registry):
    registry.add("{name}", "m:D", priority={priority}, available=lambda: {answer})
"""


# the core as its own first plugin ----------------------------------------------------------------------------


def test_the_core_registers_what_it_brings_through_the_hooks(vime_plugins) -> None:
    plugins = vime_plugins()
    found = {hook.removeprefix("vime_register_"): registry.names() for hook, registry in plugins.registries().items()}
    assert found["device_backends"] == ["cpu", "core/cpu"]
    assert {"grpo", "sft"} <= set(found["algorithms"])
    assert {"generate", "sft"} <= set(found["rollouts"])
    assert {"math", "exact", "reasoning_gym"} <= set(found["rewards"])
    assert {"shared_memory", "gloo"} <= set(found["weight_syncs"])
    assert "check_reward_nonzero_std" in found["filters"]


def test_every_target_of_the_core_loads_and_has_the_shape_of_its_kind(vime_plugins) -> None:
    loaded = [provider.load() for registry in vime_plugins().registries().values() for provider in registry]
    assert len(loaded) >= 11


def test_every_kind_can_be_registered(world) -> None:
    kinds = [
        "device_backends",
        "weight_syncs",
        "algorithms",
        "rollouts",
        "rewards",
        "environments",
        "filters",
        "corrections",
        "commands",
    ]
    hook = "@hookimpl\ndef vime_register_{0}(registry):\n    registry.add('mine_{0}', 'json:dumps')\n"
    world.install("all", "".join(hook.format(kind) for kind in kinds))
    registries = world.load("all").registries()
    assert [r.get(f"mine_{hook.removeprefix('vime_register_')}").plugin for hook, r in registries.items()] == [
        "all"
    ] * 9


def test_every_hook_of_the_page_has_a_caller_and_a_docstring() -> None:
    """The page and the facade name the same hooks."""
    import inspect

    from vime_core import hookspecs
    from vime_core.plugin import plugins

    hooks = [name for name, value in vars(hookspecs).items() if name.startswith("vime_") and inspect.isfunction(value)]
    source = inspect.getsource(plugins)
    assert len(hooks) == 19
    for name in hooks:
        assert f'"{name}"' in source, name
        assert getattr(hookspecs, name).__doc__, name


# device choice -----------------------------------------------------------------------------------------------


def test_without_plugins_the_cpu_is_chosen(vime_plugins) -> None:
    assert vime_plugins().choose_device().qualified_name == "core/cpu"


def test_highest_available_priority_wins(world) -> None:
    world.install("big", device("big", "(False, 'no /dev/big')", 90))
    world.install("mid", device("mid", "True", 40))
    world.install("low", device("low", "True"))
    assert world.load().choose_device().qualified_name == "mid/mid"
    assert world.load().choose_device("cpu").qualified_name == "core/cpu"
    assert world.load().choose_device("big/big").qualified_name == "big/big"


def test_tie_is_an_error_that_names_both(world) -> None:
    for name in ("one", "two"):
        world.install(name, device(name, "True"))
    with pytest.raises(PluginError, match="several device backends of priority 30 can run here: one/one, two/two; say"):
        world.load().choose_device()


def test_a_requested_device_is_never_exchanged_for_another_without_a_word(world) -> None:
    world.install("npu", device("npu", "(False, 'no /dev/npu0')"))
    assert world.load().choose_device().qualified_name == "core/cpu"
    with pytest.raises(PluginError) as caught:
        world.load("npu").choose_device()
    assert str(caught.value) == (
        "no requested device backend is available here; tried: npu/npu (no /dev/npu0); "
        "say --device to run on another: core/cpu"
    )
    assert world.load("npu").choose_device("cpu").qualified_name == "core/cpu"


def test_a_probe_with_several_things_to_say_gets_a_line_for_each(world) -> None:
    world.install("npu", device("npu", "(False, 'no driver: install it' + chr(10) + 'no toolkit: install it')"))
    with pytest.raises(PluginError) as caught:
        world.load("npu").choose_device()
    assert str(caught.value).splitlines() == [
        "no requested device backend is available here; tried: npu/npu:",
        "  no driver: install it",
        "  no toolkit: install it",
        "say --device to run on another: core/cpu",
    ]


def test_a_requested_plugin_without_devices_leaves_the_choice_alone(world) -> None:
    world.install("plain")
    assert world.load("plain").choose_device().qualified_name == "core/cpu"


def test_a_raising_probe_counts_as_no_and_is_printed(world) -> None:
    world.install("odd", device("odd", "1 / 0", 90))
    assert world.load().choose_device().qualified_name == "core/cpu"
    assert world.warnings == [
        "plugin 'odd' (vime-odd 1.0): device backend 'odd' counts as not available: "
        "its probe raised ZeroDivisionError: division by zero"
    ]


def test_unknown_device(vime_plugins) -> None:
    with pytest.raises(PluginError, match="no device backend named 'cpuu'; did you mean 'cpu'; there are: cpu"):
        vime_plugins().choose_device("cpuu")


# weight sync choice ------------------------------------------------------------------------------------------


def test_core_chooses_by_nodes(vime_plugins) -> None:
    plugins = vime_plugins()
    assert plugins.choose_weight_sync(ONE_NODE) == "core/shared_memory"
    assert plugins.choose_weight_sync(TWO_NODES) == "core/gloo"


SYNC = """
@hookimpl
def vime_register_weight_syncs(registry):
    registry.add("{0}", "m:S")

@hookimpl
def vime_choose_weight_sync(topology):
    return {1}
"""


def test_plugins_are_asked_before_the_core_and_the_last_requested_first(world) -> None:
    world.install("alpha", SYNC.format("a_sync", "'a_sync'"))
    world.install("beta", SYNC.format("b_sync", "'b_sync' if topology.nodes == 1 else None"))
    assert world.load("alpha", "beta").choose_weight_sync(ONE_NODE) == "beta/b_sync"
    assert world.load("alpha", "beta").choose_weight_sync(TWO_NODES) == "alpha/a_sync"
    assert world.load("beta", "alpha").choose_weight_sync(ONE_NODE) == "alpha/a_sync"


def test_a_plugin_that_chooses_its_own_gets_its_own(world) -> None:
    world.install("alpha", SYNC.format("gloo", "'gloo'"))
    assert world.load().choose_weight_sync(ONE_NODE) == "alpha/gloo"


def test_choosing_a_name_that_nobody_registered_is_blamed(world) -> None:
    world.install("alpha", SYNC.format("a_sync", "'a_sink'"))
    with pytest.raises(
        PluginError, match=r"plugin 'alpha' \(vime-alpha 1.0\): vime_choose_weight_sync: no weight sync"
    ):
        world.load().choose_weight_sync(ONE_NODE)


# environment -------------------------------------------------------------------------------------------------


def environment(expression: str) -> str:
    return f"@hookimpl\ndef vime_worker_environment(role, config):\n    return {expression}\n"


def test_variables_of_all_plugins_are_merged(world) -> None:
    world.install("alpha", environment("{'A': '1', 'BOTH': 'x'} if role == 'trainer' else None"))
    world.install("beta", environment("{'B': config.run.name, 'BOTH': 'x'}"))
    plugins = world.load()
    assert plugins.worker_environment("trainer", Config()) == {"A": "1", "B": "run", "BOTH": "x"}
    assert plugins.worker_environment("engine", Config()) == {"B": "run", "BOTH": "x"}


def test_different_values_for_one_variable_name_both_plugins(world) -> None:
    world.install("alpha", environment("{'A': '1'}"))
    world.install("beta", environment("{'A': '2'}"))
    with pytest.raises(PluginError) as caught:
        world.load().worker_environment("engine", Config())
    for part in ("'alpha' (vime-alpha 1.0) wants A=1", "'beta' (vime-beta 1.0) wants A=2", "engine", "--plugin no:"):
        assert part in str(caught.value)


def test_process_started_reaches_every_plugin(world) -> None:
    world.install("alpha", "seen = []\n@hookimpl\ndef vime_process_started(role):\n    seen.append(role)\n")
    plugins = world.load()
    plugins.process_started("trainer")
    plugins.process_started("rollout")
    assert plugins.members[1].plugin.seen == ["trainer", "rollout"]


def test_process_started_of_a_requested_plugin_that_raises_ends_the_run(world) -> None:
    world.install("beta", "@hookimpl\ndef vime_process_started():\n    raise OSError('no driver')\n")
    with pytest.raises(PluginError) as caught:
        world.load("beta").process_started("trainer")
    assert str(caught.value).startswith("plugin 'beta' (vime-beta 1.0): vime_process_started: OSError: no driver; run")
    assert isinstance(caught.value.__cause__, OSError)


def test_configure_reports_the_violations_of_all_plugins_together(world) -> None:
    head = "from vime_core.api.errors import ConfigError\n"
    refuse = head + "@hookimpl\ndef vime_configure(config):\n    raise ConfigError({})\n"
    world.install("alpha", refuse.format("['a1', 'a2']"))
    world.install("beta", refuse.format("'b1'"))
    with pytest.raises(ConfigError) as caught:
        world.load().configure(Config())
    assert sorted(caught.value.violations) == [
        "plugin 'alpha' (vime-alpha 1.0): a1",
        "plugin 'alpha' (vime-alpha 1.0): a2",
        "plugin 'beta' (vime-beta 1.0): b1",
    ]


def test_configure_that_fails_otherwise_is_blamed(world) -> None:
    world.install("alpha", "@hookimpl\ndef vime_configure(config):\n    config.nope\n")
    with pytest.raises(PluginError, match=r"plugin 'alpha' \(vime-alpha 1.0\): vime_configure: AttributeError: .*nope"):
        world.load().configure(Config())


# observation -------------------------------------------------------------------------------------------------

OBSERVER = """
seen = []

@hookimpl
def vime_run_started(run):
    seen.append(("run_started", run))

@hookimpl
def vime_step_finished(step, metrics):
    seen.append(("step_finished", step, metrics["loss"]))

@hookimpl
def vime_weights_synced(version, seconds):
    seen.append(("weights_synced", version, seconds))

@hookimpl
def vime_checkpoint_saved(path):
    seen.append(("checkpoint_saved", str(path)))

@hookimpl
def vime_run_finished(outcome):
    seen.append(("run_finished", outcome))
"""


def test_observers_get_what_they_ask_for_in_order(world, tmp_path) -> None:
    world.install("watch", OBSERVER)
    plugins = world.load()
    plugins.run_started("the run")
    plugins.step_finished("the run", 3, {"loss": 0.5})
    plugins.weights_synced("the run", 4, 0.25)
    plugins.checkpoint_saved("the run", tmp_path)
    plugins.run_finished("the run", "finished")
    assert plugins.members[1].plugin.seen == [
        ("run_started", "the run"),
        ("step_finished", 3, 0.5),
        ("weights_synced", 4, 0.25),
        ("checkpoint_saved", str(tmp_path)),
        ("run_finished", "finished"),
    ]


def test_a_failing_observer_is_logged_once_counted_and_stops_nobody(world, caplog) -> None:
    world.install("alpha", OBSERVER)
    world.install("bad", "@hookimpl\ndef vime_step_finished(step):\n    raise ValueError(f'plot {step}')\n")
    world.install("zeta", OBSERVER)
    plugins = world.load()
    for step in range(3):
        plugins.step_finished(None, step, {"loss": 1.0})
    assert plugins.observer_failures == Counter({("bad", "vime_step_finished"): 3})
    (record,) = caplog.records
    assert "plugin 'bad' (vime-bad 1.0): vime_step_finished: ValueError: plot 0" in record.message
    assert record.exc_info is not None
    watchers = [m.plugin.seen for m in plugins.members if m.name in ("alpha", "zeta")]
    assert [len(seen) for seen in watchers] == [3, 3]


def test_a_failing_observer_raises_in_strict_mode(world) -> None:
    world.install("bad", "@hookimpl\ndef vime_step_finished(step):\n    raise ValueError('plot')\n")
    plugins = world.load(strict=True)
    with pytest.raises(PluginError, match="vime_step_finished: ValueError: plot"):
        plugins.step_finished(None, 1, {})


def test_an_interrupt_inside_an_observer_is_an_interrupt(world) -> None:
    world.install("alpha", "@hookimpl\ndef vime_step_finished():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        world.load().step_finished(None, 1, {})


# options -----------------------------------------------------------------------------------------------------

OPTIONS = """
import dataclasses

@dataclasses.dataclass(frozen=True)
class Mine:
    {field}

@hookimpl
def vime_register_options(options):
    options.add(Mine)
"""


@dataclass(frozen=True)
class Whole:
    buffer_mb: int = field(default=64, metadata={"help": "size"})


def test_options_by_plugin_name(world) -> None:
    text = "buffer_mb: int = dataclasses.field(default=64, metadata={'help': 'size'})"
    world.install("mine", OPTIONS.format(field=text))
    options = world.load().options
    assert list(options) == ["mine"]
    assert options["mine"]().buffer_mb == 64


@pytest.mark.parametrize(
    ("plugin", "text", "message"),
    [
        ("mine", "x: int = 1", r"options Mine.x: no help; write field\("),
        ("mine", "x: int", "options Mine.x: no default"),
        (
            "rollout",
            "batch_size: int = dataclasses.field(default=1, metadata={'help': 'h'})",
            "--rollout-batch-size is a flag of the core",
        ),
    ],
)
def test_options_that_cannot_become_flags(world, plugin, text, message) -> None:
    world.install(plugin, OPTIONS.format(field=text))
    with pytest.raises(PluginError, match=message):
        world.load(plugin)


def test_options_are_added_once_and_only_in_the_hook(world) -> None:
    plugins = world.load()
    with pytest.raises(PluginError, match="only inside vime_register_options"):
        plugins.options.add(Whole)
    text = "x: int = dataclasses.field(default=1, metadata={'help': 'h'})"
    world.install("mine", OPTIONS.format(field=text) + "    options.add(Mine)\n")
    with pytest.raises(PluginError, match="a second was added"):
        world.load("mine")
