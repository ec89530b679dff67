"""Discovery, ``--plugin``, order, and what happens to plugins that cannot be loaded."""

from __future__ import annotations

import re

import pytest

from vime_core.api.errors import PluginError

REWARD = """
@hookimpl
def vime_register_rewards(registry):
    registry.add("{name}", "json:dumps")
"""


def reward(name: str) -> str:
    return REWARD.format(name=name)


def test_order_is_core_then_installed_by_name_then_requested(world, names) -> None:
    for name in ("zeta", "alpha", "mid", "beta"):
        world.install(name)
    assert names(world.load("mid", "alpha")) == ["core", "beta", "zeta", "mid", "alpha"]
    assert names(world.load("alpha", "mid")) == ["core", "beta", "zeta", "alpha", "mid"]


@pytest.mark.parametrize("spec", ["my-plug", "my_plug", "My-Plug", "vime-plug-dist", "vime_plug_dist"])
def test_entry_point_and_distribution_names_are_equal_up_to_spelling(world, names, spec) -> None:
    world.install("my-plug", dist="vime-plug-dist")
    assert names(world.load(spec, autoload=False)) == ["core", "my-plug"]


def test_module_object_and_file_can_be_requested(world, names) -> None:
    world.write(f"site/{world.module('mod')}.py", "class Hooks:\n    pass\n\nready = Hooks()\n")
    world.write("lone.py", "x = 1\n")
    module = world.module("mod")
    assert names(world.load(f"{module}:ready", "./lone.py")) == ["core", f"{module}.ready", "lone"]


def test_the_module_of_an_installed_plugin_is_that_plugin(world) -> None:
    module = world.install("known", reward("r"))
    plugins = world.load(module)
    assert [str(m.owner) for m in plugins.members[1:]] == ["plugin 'known' (vime-known 1.0)"]
    assert plugins.members[1].requested


def test_asked_for_twice_counts_once_where_it_was_asked_last(world, names) -> None:
    for name in ("alpha", "beta"):
        world.install(name)
    assert names(world.load("alpha", "beta", VIME_PLUGINS="alpha,beta")) == ["core", "alpha", "beta"]
    assert names(world.load("alpha", VIME_PLUGINS="alpha, beta")) == ["core", "beta", "alpha"]


@pytest.mark.parametrize("out", ["no:alpha", "no:vime-alpha", "no:vime_alpha"])
def test_no_leaves_out_whoever_asked(world, names, out) -> None:
    world.install("alpha")
    assert names(world.load(out)) == ["core"]
    assert names(world.load("alpha", out)) == ["core"]
    assert names(world.load(out, VIME_PLUGINS="alpha")) == ["core"]
    assert names(world.load("alpha", VIME_PLUGINS=out)) == ["core"]


def test_no_works_for_files_and_modules(world, names) -> None:
    world.write("left_out.py", "x = 1\n")
    for out in ("no:left_out", "no:./left_out.py"):
        assert names(world.load("./left_out.py", out)) == ["core"]


@pytest.mark.parametrize("spec", ["", "  ", "no:"])
def test_an_empty_name_is_an_error(world, spec) -> None:
    with pytest.raises(PluginError, match="empty name"):
        world.load(spec)


def test_the_core_stays(world, names) -> None:
    with pytest.raises(PluginError, match="the core cannot be left out"):
        world.load("no:core")
    assert names(world.load("core")) == ["core"]


def test_autoload_can_be_switched_off(world, names) -> None:
    for name in ("alpha", "beta"):
        world.install(name)
    assert names(world.load("beta", VIME_DISABLE_PLUGIN_AUTOLOAD="1")) == ["core", "beta"]
    assert names(world.load("beta", autoload=False)) == ["core", "beta"]
    assert names(world.load("beta", VIME_DISABLE_PLUGIN_AUTOLOAD="0")) == ["core", "alpha", "beta"]


def test_unknown_plugin_names_the_nearest_and_what_is_installed(world) -> None:
    world.install("alpha")
    with pytest.raises(PluginError, match=r"no plugin named 'alpah'; did you mean 'alpha'; installed: .*alpha"):
        world.load("alpah")


# broken plugins, each in its own way -------------------------------------------------------------------------

BROKEN = {
    "missing dependency": ("import does_not_exist", r"ModuleNotFoundError: No module named 'does_not_exist'; install"),
    "raises at import": ("1 / 0", r"import of \S+\.plugin: ZeroDivisionError: division by zero"),
    "exits at import": ("raise SystemExit(3)", r"import of \S+\.plugin: SystemExit: 3"),
    "syntax": ("def f(:", r"import of \S+\.plugin: SyntaxError"),
    "raises in a hook": (
        "@hookimpl\ndef vime_register_rewards(registry):\n    registry.add('kept', 'm:f')\n    raise KeyError('boom')",
        r"vime_register_rewards: KeyError: 'boom'",
    ),
    "wrong keyword": (
        "@hookimpl\ndef vime_register_rewards(registry):\n    registry.add('r', 'm:f', summry='x')",
        r"vime_register_rewards: TypeError: .*summry",
    ),
    "name twice": (
        "@hookimpl\ndef vime_register_rewards(registry):\n    registry.add('r', 'm:f')\n    registry.add('r', 'm:g')",
        r"vime_register_rewards: reward 'r' is added twice",
    ),
    "unknown argument": ("@hookimpl\ndef vime_run_started(run, stepp):\n    pass", r"vime_run_started.*stepp"),
    "unknown hook": (
        "@hookimpl\ndef vime_register_reward(registry):\n    pass",
        r"no hook 'vime_register_reward'; did you mean 'vime_register_rewards'",
    ),
    "no marker": ("def vime_register_rewards(registry):\n    pass", r"not marked with @hookimpl"),
    "async": ("@hookimpl\nasync def vime_run_started(run):\n    pass", r"'vime_run_started' is async"),
    "wrapper": ("@hookimpl(wrapper=True)\ndef vime_run_started(run):\n    return (yield)", r"is a wrapper"),
    "old wrapper": ("@hookimpl(hookwrapper=True)\ndef vime_run_started(run):\n    yield", r"is a wrapper"),
    "other api": ("VIME_API = 99", r"is written for plugin API 99, this vime-core has 1"),
    "options not frozen": (
        "import dataclasses\n@dataclasses.dataclass\nclass O:\n    x: int = 1\n"
        "@hookimpl\ndef vime_register_options(options):\n    options.add(O)",
        r"vime_register_options: options O: the dataclass is not frozen",
    ),
}


@pytest.mark.parametrize("way", BROKEN)
def test_broken_and_not_asked_for_is_one_warning(world, names, way) -> None:
    code, cause = BROKEN[way]
    world.install("broken", "pass")
    (world.site / world.module("broken") / "plugin.py").write_text(f"from vime_core import hookimpl\n{code}\n")
    world.install("fine", reward("mine"))
    plugins = world.load()
    assert names(plugins) == ["core", "fine"]
    assert plugins.rewards.get("mine").plugin == "fine"
    assert "kept" not in plugins.rewards.names()
    (warning,) = world.warnings
    assert "\n" not in warning
    assert warning.startswith("plugin 'broken' (vime-broken 1.0) was skipped: ")
    assert re.search(cause, warning), warning


@pytest.mark.parametrize("way", BROKEN)
@pytest.mark.parametrize("asked", ["requested", "strict"])
def test_broken_and_asked_for_ends_the_run(world, way, asked) -> None:
    code, cause = BROKEN[way]
    world.install("broken")
    (world.site / world.module("broken") / "plugin.py").write_text(f"from vime_core import hookimpl\n{code}\n")
    specs, strict = (["broken"], False) if asked == "requested" else ([], True)
    with pytest.raises(PluginError, match=cause) as caught:
        world.load(*specs, strict=strict)
    assert str(caught.value).startswith("plugin 'broken' (vime-broken 1.0): ")
    assert "\n" not in str(caught.value)
    assert "--plugin no:broken" in str(caught.value)
    assert caught.value.exit_code == 2


def test_hooks_of_a_skipped_plugin_never_run(world) -> None:
    world.install(
        "broken",
        """
        @hookimpl
        def vime_worker_environment(role, config):
            return {"FROM_BROKEN": "1"}

        @hookimpl
        def vime_register_rewards(registry):
            raise RuntimeError("no")
        """,
    )
    assert world.load().worker_environment("trainer", None) == {}


def test_two_claimants_are_skipped_with_both_named(world, names) -> None:
    world.install("dup", dist="vime-one", version="0.1")
    module = world.install("dup", dist="vime-two", version="9.9")
    assert names(world.load()) == ["core"]
    assert world.warnings[0].startswith(
        f"plugin 'dup' (vime-one 0.1) was skipped: also claimed by vime-two 9.9 ({module}); uninstall one of them"
    )
    with pytest.raises(PluginError, match=r"plugin 'dup' \(vime-one 0.1\): also claimed by vime-two 9.9"):
        world.load("dup")


def test_the_distribution_settles_a_claim(world) -> None:
    world.install("dup", dist="vime-one")
    world.install("dup", dist="vime-two")
    plugins = world.load("vime-two")
    assert [m.owner.dist for m in plugins.members] == ["vime-core", "vime-two"]
    assert world.warnings == []


def test_one_entry_point_listed_twice_is_no_conflict(world, names) -> None:
    module = world.install("twice")
    info = next(world.site.glob("vime_twice*.dist-info"))
    with (info / "entry_points.txt").open("a") as file:
        file.write(f"\n[vime.plugins]\ntwice = {module}\n")
    assert names(world.load()) == ["core", "twice"]
    assert world.warnings == []


@pytest.mark.parametrize("needs", ["vime-core<0.1", "vime_core>=0.2,<0.3", "Vime.Core==9"])
def test_a_plugin_for_another_core_is_not_imported(world, names, needs) -> None:
    world.install("old", "raise SystemExit('imported')", requires=[needs])
    assert names(world.load()) == ["core"]
    assert "needs vime-core" in world.warnings[0]
    assert "installed is 0.1.0" in world.warnings[0]
    with pytest.raises(PluginError, match=r"plugin 'old' \(vime-old 1.0\): needs vime-core .*installed is 0.1.0"):
        world.load("old")


@pytest.mark.parametrize("needs", [["vime-core>=0.1,<0.2"], ["vime-core<0.1; extra == 'dev'"], ["numpy>9000"], []])
def test_requirements_that_do_not_exclude_this_core(world, names, needs) -> None:
    world.install("fits", requires=needs)
    assert names(world.load()) == ["core", "fits"]


@pytest.mark.parametrize("name", ["core", "vllm", "megatron", "router", "no"])
def test_reserved_names_cannot_be_taken(world, names, name) -> None:
    world.install(name, dist=f"vime-bad-{name}")
    assert names(world.load()) == ["core"]
    assert f"the name '{name}' is reserved" in world.warnings[0]


def test_a_file_named_like_an_installed_plugin_is_an_error(world) -> None:
    world.install("alpha")
    world.write("alpha.py", "x = 1\n")
    with pytest.raises(PluginError, match="another plugin has the name 'alpha'; rename one of them"):
        world.load("./alpha.py")


def test_missing_file_and_module(world) -> None:
    with pytest.raises(PluginError, match=r"plugin 'gone': import of /.*/gone.py: no file /.*/gone.py"):
        world.load("./gone.py")
    with pytest.raises(PluginError, match=r"plugin 'no_such.mod': import of no_such.mod: no module 'no_such'; install"):
        world.load("no_such.mod")


def test_installing_a_package_changes_no_command_line(world) -> None:
    before = world.load()
    world.install("newcomer", reward("math") + reward("exact").replace("rewards", "filters"))
    after = world.load()
    assert after.rewards.get("math").qualified_name == before.rewards.get("math").qualified_name == "core/math"
    assert after.rewards.get("newcomer/math").plugin == "newcomer"
    assert world.load("newcomer").rewards.get("math").plugin == "newcomer"


def test_one_file_is_enough_for_a_reward(world) -> None:
    world.write("my_reward.py", "def score(sample):\n    return 7.0\n")
    plugins = world.load("./my_reward.py")
    assert plugins.rewards.resolve("my_reward:score")(None) == 7.0


@pytest.mark.parametrize(
    ("gone", "what"),
    [("plugin.py", "'{0}': {1} has no 'plugin'"), ("", "no module '{1}'")],
    ids=["the module", "the package"],
)
def test_an_entry_point_to_a_missing_module_says_what_to_do(world, gone: str, what: str) -> None:
    module = world.install("moved")
    folder = world.site / module.partition(".")[0]
    (folder / "plugin.py").unlink()
    if not gone:
        (folder / "__init__.py").unlink()
        folder.rmdir()
    world.load()
    (line,) = world.warnings
    assert line == (
        f"plugin 'moved' (vime-moved 1.0) was skipped: import of {module}: {what.format(module, folder.name)}; "
        "the entry point 'moved' of vime-moved names it: install vime-moved again, or correct "
        '[project.entry-points."vime.plugins"] in its pyproject.toml; --plugin no:moved leaves it out'
    )


def test_a_name_of_the_core_is_said_to_be_two(world) -> None:
    """Whoever merely installs a plugin keeps the core's ``exact``; whoever asks for it gets its own. Both are told."""
    world.install(
        "mine",
        """
        @hookimpl
        def vime_register_rewards(registry):
            registry.add("exact", "json:dumps", summary="another")
        """,
    )
    says = "plugin 'mine' (vime-mine 1.0) adds reward 'exact', which is a name of the core: "
    assert world.load().rewards.get("exact").plugin == "core"
    assert world.load("mine").rewards.get("exact").plugin == "mine"
    assert world.warnings == [
        f"{says}it stays the core's; the plugin's is mine/exact",
        f"{says}it now means mine/exact, since the plugin was asked for; the core's is core/exact",
    ]
