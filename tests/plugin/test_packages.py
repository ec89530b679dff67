"""The three plugins of this repository: what they say here, what they use of vime, how they are packaged."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from vime_core.api.errors import PluginError
from vime_core.plugin.registry import Provider

ROOT = Path(__file__).parents[2]
PLUGINS = ["vime-agents", "vime-ascend", "vime-cuda"]
#: the conformance kit looks into the core, and is not among them
SOURCES = sorted(path for plugin in PLUGINS for path in (ROOT / "plugins" / plugin).glob("vime_*/**/*.py"))
TEMPLATES = sorted(ROOT.glob("plugins/vime-testing/vime_testing/templates/**/*.py.tmpl"))


def project(path: str) -> dict:
    return tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"]


# what they say here ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("plugin", "missing"), [("cuda", "no NVIDIA device")])
def test_devices_say_why_they_cannot_run_here(vime_plugins, plugin, missing) -> None:
    plugins = vime_plugins(plugin)
    provider: Provider = plugins.devices.get(plugin)
    ok, reason = provider.available()
    if ok:
        pytest.skip(f"the device is here: {reason}")
    assert missing in reason
    assert provider.load()().ray_options(1)  # its answers need no device
    with pytest.raises(PluginError, match=f"no requested device backend is available here; tried: {plugin}/{plugin}"):
        plugins.choose_device()


def test_installed_together_they_change_nothing_that_was_not_asked_for(vime_plugins) -> None:
    both = vime_plugins("agents")
    assert both.choose_device().qualified_name == "core/cpu"
    assert both.environments.get("number_guess").qualified_name == "agents/number_guess"


def play(metadata: dict, actions: list[str]) -> list:
    from vime_core.plugin.plugins import Plugins

    async def game() -> list:
        environment = Plugins.load(["agents"], autoload=False, environ={}).environments.resolve("number_guess")()
        seen = [await environment.reset(metadata)]
        for action in actions:
            seen.append(await environment.step(action))
        await environment.close()
        return seen

    return asyncio.run(game())


def test_number_guess_answers_and_ends() -> None:
    seen = play({"target": 37}, ["I say 50.", "hmm", "25", "so: 37"])
    assert [o.text for o in seen[1:]] == ["Lower.", "Say a number from 1 to 100.", "Higher.", "Correct."]
    assert [o.done for o in seen] == [False, False, False, False, True]
    assert seen[-1].info == {"solved": True, "guesses": 4}


def test_number_guess_is_always_solved_by_halving_and_not_with_one_guess_less() -> None:
    def halve(target: int, **more: int) -> bool:
        low, high, actions = 1, 100, []
        while True:
            actions.append(str((low + high) // 2))
            last = play({"target": target, **more}, actions)[-1]
            if last.done:
                return last.info["solved"]
            low, high = (int(actions[-1]) + 1, high) if last.text == "Higher." else (low, int(actions[-1]) - 1)

    assert all(halve(target) for target in (1, 2, 37, 50, 99, 100))
    assert not halve(100, guesses=6)


@pytest.mark.parametrize("metadata", [{}, {"target": 101}, {"target": "7"}, {"target": 5, "low": 6}])
def test_number_guess_refuses_games_that_cannot_be_won(metadata) -> None:
    with pytest.raises(ValueError, match="number_guess: metadata target="):
        play(metadata, [])


def test_number_guess_is_over_when_it_is_over() -> None:
    with pytest.raises(ValueError, match="the game is over"):
        play({"target": 5}, ["5", "5"])


# what they use of vime ---------------------------------------------------------------------------------------


#: where a plugin finds everything that it implements or handles
PUBLIC = {"vime_core", "vime_core.api", "vime_core.hookspecs"}
#: what it builds on beside that, from the doors of folders, and no more
BESIDE = {
    "vime_core.plugin": {"Options", "Registry"},
    "vime_core.config": {"lonely_ranks", "megatron_flag", "megatron_on", "read_model"},
    "vime_core.runtime": {"ProcessResult", "run_python"},
    "vime_core.batch": {"StepBatch"},
    "vime_core.algorithms": {"CorrectionResult"},
    "vime_core.rollout": {"RolloutContext"},
    "vime_core.weights": {
        *("StreamSync", "StreamPublisher", "StreamReceiver", "Connect", "Rendezvous"),
        *("CommunicatorChannel", "SharedChannel", "GlooChannel", "GlooSync"),
        *("from_text", "to_text", "machine"),
    },
}


@pytest.mark.parametrize("path", [*SOURCES, *TEMPLATES], ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_plugins_use_only_public_names(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"^ *import vime_core.*$", text, re.MULTILINE) == []
    found = re.findall(r"^ *from (vime_core[\w.]*) import (\([^)]*\)|.*)$", text, re.MULTILINE)
    used = [(module, name) for module, names in found for name in re.findall(r"\w+", names.partition("#")[0])]
    strange = [(m, n) for m, n in used if m not in PUBLIC and n not in BESIDE.get(m, ())]
    assert strange == []
    assert [name for _, name in used if name.startswith("_")] == []


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_plugin_module_is_light(plugin: str) -> None:
    module = plugin.replace("-", "_")
    code = (
        f"import sys, {module}.plugin; "
        "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'vllm', 'ray', 'transformers', 'megatron', 'typer'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "[]\n"


# packaging ---------------------------------------------------------------------------------------------------


def test_one_version_for_all_four() -> None:
    from packaging.requirements import Requirement

    version = project(".")["version"]
    for plugin in PLUGINS:
        described = project(f"plugins/{plugin}")
        assert described["name"] == plugin
        assert described["version"] == version
        (needs,) = [Requirement(text) for text in described["dependencies"] if Requirement(text).name == "vime-core"]
        assert needs.specifier.contains(version)
        assert sorted(clause.operator for clause in needs.specifier) == ["<", ">="]
        assert project(".")["optional-dependencies"][plugin.removeprefix("vime-")] == [plugin]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_every_package_is_typed_and_has_its_entry_point(plugin: str) -> None:
    module = plugin.replace("-", "_")
    assert (ROOT / "plugins" / plugin / module / "py.typed").exists()
    assert project(f"plugins/{plugin}")["entry-points"]["vime.plugins"] == {
        plugin.removeprefix("vime-"): f"{module}.plugin"
    }


@pytest.mark.slow
def test_wheels_in_a_bare_environment(tmp_path: Path) -> None:
    """Build all four, install them where nothing else is, and use them from there."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    sources = [str(ROOT), *(str(ROOT / "plugins" / plugin) for plugin in PLUGINS)]
    wheels = tmp_path / "wheels"
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), *sources]
    subprocess.run(build, check=True, timeout=300, cwd=tmp_path)
    assert len(list(wheels.glob("*.whl"))) == 4
    venv.create(tmp_path / "bare", with_pip=True)
    python = str(tmp_path / "bare/bin/python")
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    install = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--find-links", str(wheels)]
    subprocess.run([*install, "vime-core", *PLUGINS], check=True, timeout=300, cwd=tmp_path, env=environ)

    def run(*argv: str) -> str:
        return subprocess.run(
            [*argv], check=True, timeout=60, cwd=tmp_path, env=environ, capture_output=True, text=True
        ).stdout

    vime = str(tmp_path / "bare/bin/vime")
    listed = [line.split()[:4] for line in run(vime, "plugins", "list").splitlines()]
    assert listed == [[p.removeprefix("vime-"), p, project(".")["version"], "installed"] for p in PLUGINS]
    assert "train" in run(vime, "--help")
    assert "not installed" in run(vime, "version")
    assert "not available here" in run(vime, "plugins", "info", "ascend")
    packages = ["vime_core", "vime_cli", *(plugin.replace("-", "_") for plugin in PLUGINS)]
    code = f"import importlib.resources as r; print([(r.files(p) / 'py.typed').is_file() for p in {packages}])"
    assert run(python, "-c", code) == f"{[True] * 5}\n"
    assert "['cli']" not in run(
        python, "-c", "import importlib.util as u; print([m for m in ['cli'] if u.find_spec(m)])"
    )
