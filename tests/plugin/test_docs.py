"""``docs/plugins``: the generated pages are up to date, and every block of code in the tutorial does what it says."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from vime_cli.quickstart.addition import prepare
from vime_testing import document

from tests.support.runs import step_rows, two_steps, vime
from vime_core.config.catalogue import Catalogue, as_flag
from vime_core.observe.catalog import known

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "plugins"
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return [body for kind, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if kind == language]


def files() -> dict[str, str]:
    """Name of a file in its first line -> the block."""
    named = {re.match(r"# (\w+\.py)\n", block): block for block in blocks(TUTORIAL, "python")}
    return {match[1]: block for match, block in named.items() if match}


@pytest.mark.parametrize("name", document.PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == document.PAGES[name](), "run python -m vime_testing.document"


def test_the_module_writes_the_pages(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "vime_testing.document", str(tmp_path)], check=True, timeout=60)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {n: p() for n, p in document.PAGES.items()}


def test_the_reference_has_every_hook_with_its_arguments_under_a_heading() -> None:
    import inspect

    from vime_core import hookspecs

    page = document.hooks_page()
    hooks = [name for name, value in vars(hookspecs).items() if name.startswith("vime_") and inspect.isfunction(value)]
    assert re.findall(r"^### (\w+)$", page, re.M) == hooks
    assert re.findall(r"^## (\w+)$", page, re.M) == ["Registration", "Environment", "Choice", "Observation"]
    for name in hooks:
        (signature,) = re.findall(rf"^def {name}\((.*)\) -> ", page, re.M)
        assert re.findall(r"(\w+):", signature) == list(inspect.signature(getattr(hookspecs, name)).parameters)
    assert page.count("The first answer that is not None counts.") == 1


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_code_blocks_compile_and_links_lead_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = blocks(text, "python")
    assert found
    for block in found:
        ast.parse(block)
    for block in blocks(text, "toml"):
        tomllib.loads(block)
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (DOCS / link).exists(), link


def test_the_first_plugin_is_short_and_right(world, vime_sample) -> None:
    code = files()["my_reward.py"]
    assert len(code.splitlines()) < 10
    world.write("my_reward.py", code)
    score = world.load("./my_reward.py").rewards.resolve("my_reward:score")
    answers = {"46": 1.0, " 46\n": 1.0, "47": 0.1, "4": 0.0}
    assert {text: score(vime_sample(label="46", response=text)) for text in answers} == answers


def test_check_and_pytest_of_the_first_plugin(world) -> None:
    world.write("my_reward.py", files()["my_reward.py"])
    world.write("test_my_reward.py", files()["test_my_reward.py"])
    assert world.vime("plugins", "check", "./my_reward.py").returncode == 0
    done = world.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_reward.py")
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


def test_the_observer_observes(world, capsys) -> None:
    world.write("plateau.py", files()["plateau.py"])
    plugins = world.load("./plateau.py")
    for step in range(30):
        plugins.step_finished(None, step, {"rollout/raw_reward": min(step, 5)})
    assert plugins.failures() == []
    assert capsys.readouterr().out.splitlines() == ["no better reward since step 5"] * 5


def test_the_options_are_flags_and_keys(world) -> None:
    world.write("watcher.py", files()["watcher.py"])
    recipe = next(block for block in blocks(TUTORIAL, "toml") if "patience" in block)
    world.write("recipe.toml", recipe)
    shown = world.vime("train", "recipe.toml", "--show-config").stdout
    assert tomllib.loads(shown)["plugins"]["watcher"]["patience"] == 5
    typed = world.vime("train", "--plugin", "./watcher.py", "--watcher-patience", "7", "--show-config").stdout
    assert tomllib.loads(typed)["plugins"]["watcher"]["patience"] == 7


def test_check_algorithm_runs_as_shown() -> None:
    (block,) = (block for block in blocks(TUTORIAL, "python") if "check_algorithm(" in block)
    exec(compile(block, "tutorial.md", "exec"), {})


def test_every_kind_is_named_with_the_flag_that_picks_it() -> None:
    from vime_testing.skeleton import KINDS

    (listed,) = re.findall(r"^Kinds are (.*?);", TUTORIAL, re.M | re.S)
    assert re.findall(r"`([\w-]+)`", listed) == list(KINDS)
    flags_known = {as_flag(key.name) for key in Catalogue().all()}
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", TUTORIAL, re.M)
    assert {kind for kind, _ in rows} == KINDS.keys() - {"observer", "options", "weight-sync", "device"}
    flags = dict(rows)
    assert all(flag.strip("`") in flags_known for flag in flags.values() if flag.startswith("`--"))
    assert sum(flag.startswith("`--") for flag in flags.values()) == 5


def test_the_generator_keeps_the_contract(world) -> None:
    import unittest

    from vime_testing import RolloutSuite
    from vime_testing.suite import checks_of

    world.write("careful.py", files()["careful.py"])

    class Careful(RolloutSuite):
        target = "careful.py:Careful"

    for check in checks_of(Careful):
        with contextlib.suppress(unittest.SkipTest):
            getattr(Careful(), check)()


def test_the_algorithm_and_its_options(world) -> None:
    from vime_testing import check_algorithm

    from vime_core.algorithms import options_of
    from vime_core.api import ConfigError
    from vime_core.config import Config

    world.write("margin.py", files()["margin.py"])
    algorithm = world.load().algorithms.resolve("margin.py:Margin")()
    check_algorithm(algorithm, aggregations=["rollout_mean"], seeds=[0], finite_differences=False)

    def options(**given: object) -> object:
        return options_of(Config().replace("algorithm", algorithm_options=given), algorithm)["margin"]

    assert (options(), options(margin=0.25)) == (0.5, 0.25)
    for given, said in (
        ({"margin": -1.0}, "margin is -1.0; give 0 or more"),
        ({"margin": "x"}, "margin"),
        ({"m": 1.0}, "m"),
    ):
        with pytest.raises(ConfigError, match=said):
            options(**given)


def test_the_recipe_of_an_algorithm_is_read(world) -> None:
    world.write("margin.py", files()["margin.py"])
    recipe = next(block for block in blocks(TUTORIAL, "toml") if "margin" in block)
    world.write("recipe.toml", recipe)
    read = tomllib.loads(world.vime("train", "recipe.toml", "--show-config").stdout)
    typed = ["--advantage-estimator", "margin.py:Margin", "--algorithm-options", '{"margin":0.25}']
    given = tomllib.loads(world.vime("train", *typed, "--show-config").stdout)
    assert read == given
    assert read["algorithm"]["algorithm_options"] == {"margin": 0.25}


def test_the_package_is_what_the_command_writes() -> None:
    """The pieces of a package that the tutorial shows are those of ``vime plugins new my-rewards --kind reward``."""
    from vime_testing.skeleton import render

    written = dict(render("my-rewards", "reward"))
    shown = next(tomllib.loads(block) for block in blocks(TUTORIAL, "toml") if "[project]" in block)
    real = tomllib.loads(written["pyproject.toml"])["project"]
    assert {key: real[key] for key in shown["project"]} == shown["project"]
    (call,) = re.findall(r"registry\.add\((.*)\)", next(b for b in blocks(TUTORIAL, "python") if "registry.add" in b))
    assert eval(f"dict(a=({call.replace('summary=', '')}))") == {
        "a": ("my_rewards", "vime_my_rewards.score:score", "the last number of the response is the label")
    }
    assert '"vime_my_rewards.score:score"' in written["vime_my_rewards/plugin.py"]


def commands() -> Iterator[list[str]]:
    for page in sorted(DOCS.glob("*.md")):
        for block in blocks(page.read_text(), ""):
            yield from (line.split() for line in block.splitlines() if line.startswith("vime "))


def test_commands_and_flags_exist() -> None:
    flags_known = {as_flag(key.name) for key in Catalogue().all()} | {"--plugin", "--kind", "--dir", "--show-config"}
    shown = list(commands())
    assert len(shown) >= 5
    for words in shown:
        assert words[1] in ("train", "plugins"), words
        assert {word for word in words if word.startswith("--")} <= flags_known, words
        assert words[1] != "train" or (ROOT / words[2]).is_file(), words
    for flag in re.findall(r"`(--[a-z-]+)[` ]", TUTORIAL):
        assert flag in flags_known | {"--watcher-patience"}, flag


def test_metrics_in_the_tutorial_are_real() -> None:
    names = re.findall(r'"((?:rollout|train|perf|sync|eval)/[\w/]+)"', TUTORIAL)
    assert names
    assert all(known(name) for name in names), names


@pytest.mark.slow
def test_the_first_plugin_trains(world, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tutorial's command, on a run of two steps."""
    task = prepare(tmp_path_factory.mktemp("task"), 7)
    world.write("my_reward.py", files()["my_reward.py"])
    options = two_steps(task, n_samples_per_prompt=4)
    done = vime(world.root, "train", *options, "--plugin", "./my_reward.py", "--reward", "my_reward:score")
    assert done.code == 0, done.text
    assert len(step_rows(world.root / "run")) == 2
