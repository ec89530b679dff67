"""``vime plugins`` through the front door: real metadata, a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

REWARD = """
import dataclasses

@dataclasses.dataclass(frozen=True)
class Mine:
    buffer_mb: int = dataclasses.field(default=64, metadata={"help": "size of a buffer"})

@hookimpl
def vime_register_rewards(registry):
    registry.add("f1", "json:dumps", summary="token overlap")

@hookimpl
def vime_register_device_backends(registry):
    registry.add("npu9", "no_such:D", priority=70, available=lambda: (False, "no /dev/npu9"))

@hookimpl
def vime_register_options(options):
    options.add(Mine)

@hookimpl
def vime_register_commands(registry):
    registry.add("hello", __name__ + ":hello")

def hello(argv):
    print("hello", argv)
    return 7
"""


def rows(text: str) -> dict[str, list[str]]:
    """Distribution -> columns of ``vime plugins list``."""
    split = [line.split(maxsplit=4) for line in text.splitlines()]
    return {row[1]: row for row in split}


def test_list_shows_every_state_without_importing_anything(world) -> None:
    exploding = world.install("explodes", "raise SystemExit('imported')")
    one = world.install("dup", dist="vime-one")
    two = world.install("dup", dist="vime-two", version="9.9")
    old = world.install("old", version="9.9", requires=["vime-core<0.1"])
    world.install("vllm", dist="vime-greedy")
    done = world.vime("plugins", "list")
    assert (done.returncode, done.stderr) == (0, "")
    table = rows(done.stdout)
    assert table["vime-explodes"] == ["explodes", "vime-explodes", "1.0", "installed", exploding]
    assert table["vime-one"][3:] == ["conflict", f"{one} also claimed by vime-two 9.9 ({two})"]
    assert table["vime-two"][3:] == ["conflict", f"{two} also claimed by vime-one 1.0 ({one})"]
    assert table["vime-old"][2:] == ["9.9", "incompatible", f"{old} needs vime-core <0.1, installed is 0.1.0"]
    assert table["vime-greedy"][3] == "reserved"
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == sorted(names)


def test_list_as_json(world) -> None:
    module = world.install("alpha")
    records = json.loads(world.vime("plugins", "list", "--json").stdout)
    assert {
        "name": "alpha",
        "dist": "vime-alpha",
        "version": "1.0",
        "status": "installed",
        "module": module,
        "problem": "",
    } in records


def test_info_of_an_installed_plugin(world) -> None:
    module = world.install("mine", REWARD)
    done = world.vime("plugins", "info", "vime-mine")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == f"mine vime-mine 1.0 {module}"
    assert "vime_register_rewards" in lines
    assert "reward mine/f1 json:dumps priority 30 token overlap" in lines
    assert "device backend mine/npu9 no_such:D priority 70 not available here: no /dev/npu9" in lines
    assert "--mine-buffer-mb int default 64 size of a buffer" in lines


def test_info_of_a_file_and_of_the_core(world) -> None:
    world.write("lone.py", "from vime_core import hookimpl\n@hookimpl\ndef vime_run_started(run):\n    pass\n")
    assert "vime_run_started" in world.vime("plugins", "info", "./lone.py").stdout
    assert "core/grpo" in world.vime("plugins", "info", "core").stdout


def test_info_of_a_broken_plugin_is_one_line(world) -> None:
    world.install("broken", "import does_not_exist")
    done = world.vime("plugins", "info", "broken")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("vime: plugin 'broken' (vime-broken 1.0): import of")
    assert "ModuleNotFoundError: No module named 'does_not_exist'; install 'does_not_exist'" in line


def test_debug_shows_the_traceback_before_the_line(world) -> None:
    world.install("broken", "import does_not_exist")
    done = world.vime("plugins", "info", "broken", VIME_DEBUG="1")
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback")
    assert "ModuleNotFoundError" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("vime: plugin 'broken'")


def test_a_plugins_command_gets_its_arguments_untouched(world) -> None:
    world.install("mine", REWARD)
    done = world.vime("hello", "--help", "-x", "--", "a b")
    assert done.returncode == 7
    assert done.stdout == "hello ['--help', '-x', '--', 'a b']\n"


def test_a_plugin_cannot_take_a_command_of_the_core(world) -> None:
    world.install("mine", REWARD.replace('"hello"', '"version"'))
    assert world.vime("version").stdout.startswith("vime ")


def test_unknown_command_knows_those_of_plugins(world) -> None:
    world.install("mine", REWARD)
    done = world.vime("helo")
    assert done.returncode == 2
    assert done.stderr == "vime: no command 'helo'; did you mean 'hello'; vime --help lists them\n"


def test_a_skipped_plugin_is_a_warning_line_and_nothing_more(world) -> None:
    world.install("broken", "import does_not_exist")
    world.install("mine", REWARD)
    done = world.vime("hello")
    assert done.returncode == 7
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: plugin 'broken' (vime-broken 1.0) was skipped: ")


@pytest.mark.parametrize("arguments", [["check", "core"], ["new", "mine", "--kind", "reward"]], ids=lambda a: a[0])
def test_without_the_conformance_kit_its_name_is_said(arguments: list[str], tmp_path) -> None:
    code = (
        "import sys; sys.modules['vime_testing'] = None; from vime_cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plugins", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "vime: the conformance kit is not installed; next: pip install vime-testing\n"
    assert list(tmp_path.iterdir()) == []
