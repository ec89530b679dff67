"""``vime doctor`` as a user calls it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "vllm", "ray", "transformers", "megatron", "numpy", "pydantic", "rich")
QUICK = [word for name in ("shared memory", "limits", "ports", "disk") for word in ("--only", name)]


def vime(*argv: object, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower() and name != "RAY_ADDRESS"}
    env = {**clean, "OMP_NUM_THREADS": "1", **environ}
    command = [sys.executable, "-m", "vime_cli.main", "doctor", *map(str, argv)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)


def test_a_machine_that_is_well_is_status_0() -> None:
    done = vime(*QUICK)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("nothing is broken, ")
    assert {line.split()[0] for line in lines[:-1]} <= {"ok", "warning"}


def test_something_broken_is_status_1_and_has_its_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        done = vime("--only", "ports", "--port", number)
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("broken")]
    assert line.startswith(f"broken   ports          port {number}: is taken; fix: end what listens there (ss -tlnp")
    assert done.stdout.splitlines()[-1].startswith("1 broken, 0 warnings")


def test_json_is_one_object_and_nothing_else() -> None:
    done = vime("--json", "--only", "environment", RAY_ADDRESS="10.0.0.1:6379")
    assert (done.returncode, done.stderr) == (1, "")
    read = json.loads(done.stdout)
    assert read["broken"] == 1
    (found,) = [one for one in read["findings"] if one["status"] == "broken"]
    assert (found["check"], found["name"]) == ("environment", "RAY_ADDRESS")
    assert found["fix"].startswith("unset RAY_ADDRESS")


def test_a_plugin_that_prints_does_not_break_the_json(world) -> None:
    module = world.install("loud", "print('hello')")
    done = vime("--json", "--plugin", module, "--only", "plugins", PYTHONPATH=str(world.site))
    assert done.stderr == "hello\n"
    assert json.loads(done.stdout)["broken"] == 0


@pytest.mark.parametrize(
    "argv", [["--only", "nothing"], ["--nope"], ["--port", "x"], ["--hf-checkpoint", "/nowhere"], ["extra"]]
)
def test_a_wrong_command_line_is_status_2(argv: list[str]) -> None:
    done = vime(*argv)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr


@pytest.mark.parametrize(
    "argv", [["--help"], [*QUICK], ["--only", "plugins", "--only", "device", "--only", "versions"]]
)
def test_nothing_heavy_is_imported(argv: list[str]) -> None:
    code = (
        "import sys\nfrom vime_cli.main import main\ntry:\n    main(['doctor', *sys.argv[1:]])\nfinally:\n"
        f"    print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1] == "HEAVY []"


@pytest.mark.slow
def test_all_of_it_on_this_machine(tmp_path: Path) -> None:
    """What CI installs is what was tested, so the whole doctor finds nothing broken there."""
    done = vime("--json", "--run-dir", tmp_path)
    read = json.loads(done.stdout)
    assert done.returncode == 0, [one for one in read["findings"] if one["status"] == "broken"]
    checks = {one["check"] for one in read["findings"]}
    assert checks >= {"plugins", "versions", "device", "imports", "shims", "link", "shared memory", "limits", "ports"}
    (megatron,) = [one for one in read["findings"] if (one["check"], one["name"]) == ("shims", "megatron")]
    assert "megatron.core.parallel_state:torch" in megatron["items"]
    assert {one["status"] for one in read["findings"] if one["check"] in ("imports", "shims", "link")} == {"ok"}
