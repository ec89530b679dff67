"""The ``vime`` command from outside: help, errors, exit status, and what it must not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "vllm", "ray", "transformers", "megatron", "numpy", "pydantic", "rich", "typer"}


def vime(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vime_cli.main", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("argv", [["--help"], [], ["-h"]])
def test_help_lists_the_commands_with_a_line_each(argv) -> None:
    done = vime(*argv)
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    for command in ("train", "plugins", "version"):
        assert len(lines[command].split()) > 3


def test_unknown_command_names_the_nearest() -> None:
    done = vime("trian", "--lr", "1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "vime: no command 'trian'; did you mean 'train'; vime --help lists them\n"


def test_an_option_before_the_command_is_an_error() -> None:
    done = vime("--lr", "1")
    assert done.returncode == 2
    assert done.stderr.startswith("vime: no option '--lr' before a command")


def test_version_reads_metadata_only() -> None:
    from importlib import metadata

    done = vime("version")
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["vime"] == metadata.version("vime-core")
    assert lines["pluggy"] == metadata.version("pluggy")
    assert vime("--version").stdout == done.stdout


@pytest.mark.parametrize("argv", [["plugins"], ["plugins", "lst"], ["plugins", "info"], ["version", "--nope"]])
def test_wrong_usage_is_status_2(argv) -> None:
    done = vime(*argv)
    assert done.returncode == 2
    assert "usage: vime" in done.stderr


@pytest.mark.parametrize("argv", [["--help"], ["plugins", "list"], ["plugins", "info", "core"], ["version"], ["trian"]])
def test_nothing_heavy_is_imported(argv) -> None:
    code = (
        "import sys; from vime_cli.main import main; main(sys.argv[1:]); "
        f"print('HEAVY', sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize(
    "module", ["vime_core", "vime_core.plugin.plugins", "vime_core.builtin", "vime_core.config.sections"]
)
def test_nothing_heavy_is_imported_by_the_kernel(module) -> None:
    code = f"import sys, {module}; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n"


def command(body: str) -> subprocess.CompletedProcess[str]:
    """Run ``main`` with a plugin command of this body, as a console script would."""
    code = (
        "import sys\nfrom vime_core import hookimpl\nfrom vime_core.api import errors\n"
        "from vime_core.plugin.plugins import Plugins\n"
        f"def failing(argv):\n    {body}\n"
        "class Hooks:\n    @hookimpl\n    def vime_register_commands(self, registry):\n"
        "        registry.add('failing', failing)\n"
        "sys.modules['own_hooks'] = sys.modules['__main__']\n"
        "import os\nos.environ['VIME_PLUGINS'] = 'own_hooks:Hooks'\n"
        "from vime_cli.main import main\nsys.exit(main(['failing']))\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_violations_are_printed_one_a_line() -> None:
    done = command("raise errors.ConfigError(['first', 'second'])")
    assert (done.returncode, done.stderr) == (2, "vime: first\nvime: second\n")


def test_exit_status_comes_from_the_error() -> None:
    assert command("raise errors.TrainerError('rank 3 failed')").returncode == 1
    assert command("raise errors.DataError('x.jsonl:3')").returncode == 2
    assert command("return 5").returncode == 5


def test_a_defect_keeps_its_traceback() -> None:
    done = command("raise RuntimeError('defect')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_an_interrupt_is_130_without_a_traceback() -> None:
    done = command("raise KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (130, "vime: interrupted\n")
