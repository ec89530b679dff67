"""Ray's own processes, and ranks beside one another, killed: who it was is said at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.runs import Run, flags, step_rows

Options = Callable[..., dict[str, Any]]


def process(run: Run, word: str) -> int:
    """Of the run's processes the one whose program's name has ``word``."""
    (pid,) = [pid for pid in run.processes() if word in psutil.Process(pid).name()]
    return pid


def complaint_after(folder: Path, options: dict[str, Any], kill: Callable[[Run], int]) -> tuple[int, str]:
    """Kill something in the middle of a run: (its pid, what the user is told)."""
    with Run(folder, "train", *flags(**options)) as run:
        run.wait_for(lambda: step_rows(folder / "run"), "a first step")
        pid = kill(run)
        os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        done = run.finish()
        assert done.code == 1, done.text
        assert "Traceback" not in done.err, done.text
        assert done.left == {}, (done.left, time.monotonic() - started)
        (complaint,) = done.complaints
        return pid, complaint


@pytest.mark.slow
@pytest.mark.parametrize(("name", "title"), [("gcs_server", "the GCS, "), ("raylet", "the raylet, ")])
def test_a_daemon_of_ray(tmp_path: Path, grpo: Options, name: str, title: str) -> None:
    pid, told = complaint_after(tmp_path, grpo(num_rollout=10000), lambda run: process(run, name))
    assert told.startswith(title)
    assert f"(pid {pid})" in told
    assert str(tmp_path / "run" / "logs" / "ray" / f"{name}.out") in told


@pytest.mark.parametrize(
    ("ranks", "killed"), [(1, 0), pytest.param(2, 1, marks=pytest.mark.slow)], ids=["alone", "second of two"]
)
def test_a_rank(tmp_path: Path, grpo: Options, ranks: int, killed: int) -> None:
    def rank(run: Run) -> int:
        found = sorted(pid for pid, title in run.processes().items() if "TrainerActor" in title)
        assert len(found) == ranks
        return found[killed]

    pid, told = complaint_after(tmp_path, grpo(num_rollout=10000, actor_num_gpus_per_node=ranks), rank)
    assert "trainer rank " in told
    assert f"(pid {pid}, output logs/ray/*-{pid}.*): the worker process died" in told
    assert list((tmp_path / "run" / "logs" / "ray").glob(f"*-{pid}.*"))
