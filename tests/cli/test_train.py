"""``vime train`` as a user runs it, up to the point where the pipeline takes over."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

HEAVY = ("torch", "numpy", "vllm", "ray", "transformers", "megatron.core", "pydantic", "rich")
MODULES = """
import sys
from vime_cli.main import main
code = main({argv!r})
found = [m for m in {heavy!r} if m in sys.modules]
print("HEAVY", found, file=sys.stderr)
sys.exit(code)
"""
PLUGIN = """
from dataclasses import dataclass, field
from vime_core import hookimpl

@dataclass(frozen=True)
class Options:
    loudness: int = field(default=3, metadata={"help": "how loud"})

@hookimpl
def vime_register_options(options):
    options.add(Options)
"""


def vime(*argv: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that also reports which heavy modules it imported."""
    code = MODULES.format(argv=["train", *argv], heavy=HEAVY)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VIME_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    done = vime("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "HEAVY []\n"
    assert "--rollout-batch-size INT" in done.stdout
    assert vime("-h", cwd=tmp_path).stdout == done.stdout


def test_help_shows_options_of_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(PLUGIN)
    done = vime("--plugin", "./loud.py", "--help", cwd=tmp_path)
    assert "--loud-loudness INT" in done.stdout
    assert "how loud (default: 3)" in done.stdout


def test_show_config(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(PLUGIN)
    (tmp_path / "run.toml").write_text('plugin = ["./loud.py"]\nlr = 1e-5\n[plugins.loud]\nloudness = 9\n')
    done = vime("run.toml", "--show-config", "--seed", "3", cwd=tmp_path, VIME_NAME="here")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "HEAVY []\n"
    data = tomllib.loads(done.stdout)
    assert (data["megatron"]["lr"], data["run"]["seed"], data["run"]["name"]) == (1e-5, 3, "here")
    assert data["plugins"]["loud"] == {"loudness": 9}
    assert data["plugin"] == ["./loud.py"]
    assert "lr = 1e-05  # recipe run.toml" in done.stdout


def test_plugin_of_the_environment_is_not_loaded_twice(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(PLUGIN)
    done = vime("--show-config", "--loud-loudness", "1", cwd=tmp_path, VIME_PLUGINS="./loud.py")
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(done.stdout)["plugin"] == ["./loud.py"]


def test_stages_are_shown_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[[stage]]\nname = "a"\nlr = 1\n[[stage]]\nname = "b"\nlr = 2\n')
    done = vime("run.toml", "--show-config", cwd=tmp_path)
    _, first, second = done.stdout.split("# ---- stage ")
    assert tomllib.loads("# " + first)["megatron"]["lr"] == 1.0
    assert tomllib.loads("# " + second)["megatron"]["lr"] == 2.0


def test_errors_come_before_anything_heavy(tmp_path: Path) -> None:
    done = vime("--lrr", "1", "--vllm-max-modl-len", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[:1] == ["vime: unknown flag --lrr; did you mean --lr?"]
    assert done.stderr.splitlines()[-1] == "HEAVY []"
    assert "Traceback" not in done.stderr


def test_nothing_to_train(tmp_path: Path) -> None:
    done = vime(cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing to train: give a recipe" in done.stderr


def test_the_recipes_of_the_project_resolve(tmp_path: Path) -> None:
    recipes = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
    assert recipes
    for recipe in recipes:
        done = vime(str(recipe), "--show-config", cwd=tmp_path)
        assert done.returncode == 0, f"{recipe.name}: {done.stderr}"
