"""``vime plugins new`` and ``check``: what is written is whole and passes its own tests untouched."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from vime_cli.quickstart.addition import prepare
from vime_testing.skeleton import KINDS, render, write_package

from tests.support.runs import step_rows, two_steps, vime
from vime_core.api.errors import UsageError

BIN = Path(sys.executable).parent


def written(folder: Path, kind: str, name: str = "") -> Path:
    return write_package(name or f"my-{kind}", kind, folder)


# what is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_of_each_kind_is_whole_and_tidy(tmp_path: Path, kind: str) -> None:
    package = written(tmp_path, kind)
    module = f"vime_my_{kind.replace('-', '_')}"
    names = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    parts = {f"{module}/{part}" for part in ("__init__.py", "py.typed", "plugin.py", f"{KINDS[kind]}.py")}
    assert names == {"pyproject.toml", "README.md", f"tests/test_{module}.py", *parts}
    texts = "".join((package / name).read_text() for name in names)
    assert "$" not in texts
    assert compileall.compile_dir(package, quiet=2)
    rules = ["--isolated", "--line-length=120", "--select=E,F,I,UP,B,SIM", "--target-version=py311"]
    for command in (["check", *rules, "."], ["format", "--isolated", "--line-length=120", "--check", "."]):
        done = subprocess.run([BIN / "ruff", *command], cwd=package, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_says_what_to_do_next(world) -> None:
    done = world.vime("plugins", "new", "my-rewards", "--kind", "reward", "--dir", "packages")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "wrote packages/vime-my-rewards; next: pip install -e packages/vime-my-rewards && "
        "vime plugins check my-rewards && pytest packages/vime-my-rewards\n"
    )


def test_nothing_is_written_over(world) -> None:
    world.write("vime-mine/notes.txt", "keep me")
    done = world.vime("plugins", "new", "vime-mine", "--kind", "reward")
    assert done.returncode == 2
    assert done.stderr == "vime: vime-mine is there already; choose another name or folder, nothing was written\n"
    assert [path.name for path in (world.root / "vime-mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "write lower-case letters"),
        ("My", "write lower-case letters"),
        ("a_b", "write lower-case letters"),
        ("-a", "write lower-case letters"),
        ("a--b", "write lower-case letters"),
        ("../a", "write lower-case letters"),
        ("core", "it is reserved"),
        ("vllm", "it is reserved"),
        ("cli", "it is reserved"),
        ("ascend", r"vime-ascend \S+ is installed here and has it"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"a plugin cannot be named '{name}': {why}"):
        write_package(name, "reward", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kind 'sampler'; choose one of reward, algorithm, rollout, environment"):
        write_package("mine", "sampler", tmp_path)


# check -------------------------------------------------------------------------------------------------------


def install(world, kind: str) -> str:
    """A generated package as if it were installed: its modules and its metadata on the path."""
    name = f"my-{kind}"
    for path, text in render(name, kind):
        world.write(f"package/{path}" if path.startswith("tests/") else f"site/{path}", "")
        (world.root / ("package" if path.startswith("tests/") else "site") / path).write_text(text)
    module = f"vime_{name.replace('-', '_')}"
    info = f"site/{module}-0.1.0.dist-info"
    needs = "Requires-Dist: vime-core<0.2,>=0.1\n"
    world.write(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vime-{name}\nVersion: 0.1.0\n{needs}")
    world.write(f"{info}/entry_points.txt", f"[vime.plugins]\n{name} = {module}.plugin\n")
    return name


#: their packages are tested with torch or a tokenizer, each in several processes
HEAVY = ("correction", "rollout")


@pytest.mark.parametrize(
    "kind",
    [
        *("reward", "environment", "filter", "observer", "options", "command"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in HEAVY),
    ],
)
def test_a_new_package_passes_check_and_its_own_tests(world, kind: str) -> None:
    name = install(world, kind)
    done = world.vime("plugins", "check", name)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert f"ok    plugin {name}: it loads" in lines
    assert f"ok    plugin {name}: loading it imports nothing heavy" in lines
    assert not any(line.startswith("FAIL") for line in lines)
    tested = world.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "package/tests")
    assert tested.returncode == 0, tested.stdout
    assert "skipped" not in tested.stdout


def test_check_says_what_fails_and_exits_1(world) -> None:
    world.write(
        "bad.py",
        "import numpy\nfrom vime_core import hookimpl\n@hookimpl\ndef vime_register_rewards(registry):\n"
        "    registry.add('f', 'nowhere:f')\n",
    )
    done = world.vime("plugins", "check", "./bad.py")
    assert done.returncode == 1
    failed = [line.removeprefix("FAIL  plugin ./bad.py: ") for line in done.stdout.splitlines() if "FAIL" in line]
    assert [line.split(":")[0] for line in failed] == [
        "loading it imports nothing heavy",
        "every name leads somewhere",
        "every name has a summary",
    ]
    assert failed[0].endswith("name the target as a string 'pkg.mod:obj' and import inside functions")
    assert done.stdout.splitlines()[-1] == "3 of the checks failed; docs/plugins/ shows how each kind is written"


def test_check_of_a_plugin_that_does_not_load_is_a_finding(world) -> None:
    world.install("broken", "import does_not_exist")
    done = world.vime("plugins", "check", "broken")
    assert done.returncode == 1
    first = done.stdout.splitlines()[0]
    assert first.startswith("FAIL  plugin broken: it loads: plugin 'broken' (vime-broken 1.0): import of")
    assert "install 'does_not_exist'" in first


def test_a_file_with_a_function_alone_can_be_checked(world) -> None:
    world.write("my_reward.py", "def score(sample):\n    return 1.0\n")
    done = world.vime("plugins", "check", "./my_reward.py")
    assert done.returncode == 0, done.stdout
    assert "ok    plugin ./my_reward.py: it adds something" in done.stdout


# a run with a package as it was written ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_new_device_trains(world, tmp_path_factory: pytest.TempPathFactory) -> None:
    install(world, "device")
    task = prepare(tmp_path_factory.mktemp("task"), 7)
    options = two_steps(task, reward="exact", device="my_device")
    done = vime(world.root, "train", *options, "--plugin", "my-device", PYTHONPATH=world.path)
    assert done.code == 0, done.text
    assert len(step_rows(world.root / "run")) == 2
    assert 'device = "my-device/my_device"' in (world.root / "run" / "config.toml").read_text()


@pytest.mark.slow
def test_new_packages_of_all_other_kinds_train_together(world, tmp_path_factory: pytest.TempPathFactory) -> None:
    """But the filter: the tiny model solves nothing, so that every group would be dropped."""
    for kind in ("reward", "algorithm", "rollout", "correction", "observer", "options", "command", "weight-sync"):
        install(world, kind)
    task = prepare(tmp_path_factory.mktemp("task"), 7)
    options = two_steps(
        task,
        reward="my_reward",
        advantage_estimator="my_algorithm",
        algorithm_options='{"clip": 0.1}',
        rollout_function="my_rollout",
        correction="my_correction",
        correction_options='{"high": 1.5}',
        my_options_set_variables="MY_VARIABLE=1",
        weight_sync="my_weight_sync",
    )
    done = vime(world.root, "train", *options, PYTHONPATH=world.path)
    assert done.code == 0, done.text
    assert "finished; the best reward was" in done.out
    assert len(step_rows(world.root / "run")) == 2
    told = world.vime("my-command", "run")
    assert told.stdout.startswith("step 0: rollout/raw_reward 0"), told.stderr


# from nothing to a tested plugin, as an author does it -------------------------------------------------------


@pytest.mark.slow
def test_each_kind_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """Written by the command, built and installed by pip alone, checked and tested there. The stack is borrowed."""
    place = tmp_path / "env"
    venv.create(place, with_pip=True)
    python, borrowed = place / "bin/python", BIN.parent / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (next(place.glob("lib/*/site-packages")) / "stack.pth").write_text(
        f"import site; site.addsitedir({str(borrowed)!r})"
    )
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*command: object, seconds: int = 400) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    for kind in KINDS:
        run(python, "-m", "vime_cli.main", "plugins", "new", f"my-{kind}", "--kind", kind)
    packages = [tmp_path / f"vime-my-{kind}" for kind in KINDS]
    run(python, "-m", "pip", "-q", "install", "--no-index", "--no-deps", "--no-build-isolation", *packages)
    findings = run(python, "-m", "vime_cli.main", "plugins", "check", *[f"my-{kind}" for kind in KINDS]).splitlines()
    for kind in KINDS:
        assert f"ok    plugin my-{kind}: it says which core it fits" in findings
    assert any(
        line.startswith("ok    weight sync my-weight-sync/my_weight_sync: every bit arrives") for line in findings
    )
    assert any(line.startswith("ok    device backend my-device/my_device: the same seed") for line in findings)
    for package in packages:
        assert " passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", package)
