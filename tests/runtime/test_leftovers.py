"""Folders of runs that were killed whole, and those that are not to be touched; where compiled code is kept."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from vime_core.runtime.leftovers import mark, remove_leftovers
from vime_core.runtime.scratch import scratch, variables

DEAD = "import sys; from pathlib import Path; from vime_core.runtime.leftovers import mark; mark(Path(sys.argv[1]))"


def folder(parent: Path, name: str, dead: bool) -> Path:
    """A run's, of this process or of one that has ended."""
    made = parent / name
    (made / "session").mkdir(parents=True)
    if dead:
        subprocess.run([sys.executable, "-c", DEAD, str(made)], check=True)
    else:
        mark(made)
    return made


def test_the_dead_go_and_the_living_stay(tmp_path: Path) -> None:
    dead, living = folder(tmp_path, "vime-dead", True), folder(tmp_path, "vime-living", False)
    silent, other, foreign = tmp_path / "vime-silent", tmp_path / "other", folder(tmp_path, "vime-foreign", True)
    silent.mkdir()
    other.mkdir()
    owner = json.loads((foreign / "owner.json").read_text())
    (foreign / "owner.json").write_text(json.dumps({**owner, "where": "another container"}))
    (tmp_path / "vime-link").symlink_to(dead)
    assert remove_leftovers(tmp_path) == [dead]
    assert not dead.exists()
    assert all(one.exists() for one in (living, silent, other, foreign))
    assert (tmp_path / "vime-link").is_symlink()


def test_one_that_a_process_uses_stays(tmp_path: Path) -> None:
    dead = folder(tmp_path, "vime-dead", True)
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    user = subprocess.Popen(command, env={"TMPDIR": str(dead)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None
    user.stdout.readline()
    assert remove_leftovers(tmp_path) == []
    user.communicate()
    assert remove_leftovers(tmp_path) == [dead]


def test_a_run_removes_what_an_earlier_one_left(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as short, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", short)
        dead = folder(Path(short), "vime-dead", True)
        with scratch(tmp_path) as mine:
            assert not dead.exists()
            assert mine.parent == Path(short)
        assert not mine.exists()


def test_compiled_headers_are_kept_between_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        environment = variables(tmp_path / run, "gloo")
        (below,) = (tmp_path / run).glob("torchinductor_*")
        assert below.resolve() == Path(environment["TORCHINDUCTOR_CACHE_DIR"])
        assert below.resolve().parent == tmp_path / "cache" / "vime"
    (kept,) = (tmp_path / "cache" / "vime").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
