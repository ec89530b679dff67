"""What a run that needs a process says when that process dies, and what it leaves behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Run, flags, step_rows

Options = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("title", "named"), [("-engine-0", "engine 0"), ("TrainerActor", "trainer rank 0")])
def test_a_process_that_is_killed_ends_the_run_by_its_name(
    tmp_path: Path, grpo: Options, title: str, named: str
) -> None:
    arguments = flags(**grpo(num_rollout=10000, save_samples=False))
    with Run(tmp_path, "train", *arguments) as run:
        run.wait_for(lambda: step_rows(tmp_path / "run"), "a first step")
        (victim,) = [pid for pid, said in run.processes().items() if said.startswith("ray::") and title in said]
        os.kill(victim, signal.SIGKILL)
        done = run.finish()
    assert done.code == 1, done.text
    (complaint,) = done.complaints
    assert named in complaint, complaint
    assert "Traceback" not in done.err
    assert done.left == {}
