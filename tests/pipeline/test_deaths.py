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
pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize(("name", "title"), [("gcs_server", "the GCS, "), ("raylet", "the raylet, ")])
def test_a_daemon_of_ray(tmp_path: Path, grpo: Options, name: str, title: str) -> None:
    pid, told = complaint_after(tmp_path, grpo(num_rollout=10000), lambda run: process(run, name))
    assert told.startswith(title)
    assert f"(pid {pid})" in told
    assert str(tmp_path / "run" / "logs" / "ray" / f"{name}.out") in told


def test_one_of_two_ranks(tmp_path: Path, grpo: Options) -> None:
    def second(run: Run) -> int:
        ranks = sorted(pid for pid, title in run.processes().items() if "TrainerActor" in title)
        assert len(ranks) == 2
        return ranks[1]

    pid, told = complaint_after(tmp_path, grpo(num_rollout=10000, actor_num_gpus_per_node=2), second)
    assert "trainer rank " in told
    assert f"(pid {pid}, output logs/ray/*-{pid}.*): the worker process died" in told
    assert list((tmp_path / "run" / "logs" / "ray").glob(f"*-{pid}.*"))


def test_a_router(tmp_path: Path, grpo: Options) -> None:
    options = grpo(num_rollout=10000, rollout_num_gpus=2, engine_retries=0)
    _, told = complaint_after(tmp_path, options, lambda run: process(run, "vllm::router"))
    assert str(tmp_path / "run" / "logs") in told


def test_an_engine(tmp_path: Path, grpo: Options) -> None:
    def engine(run: Run) -> int:
        (pid,) = [pid for pid, title in run.processes().items() if "DirectActor" in title]
        return pid

    _, told = complaint_after(tmp_path, grpo(num_rollout=10000), engine)
    assert str(tmp_path / "run" / "logs" / "engine-0.log") in told
