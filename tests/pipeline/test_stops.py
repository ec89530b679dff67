"""However a run is stopped, it ends at once, leaves nothing running, and its last checkpoint can be resumed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Run, flags, json_lines, vime
from vime_core.training import checkpoint
from vime_core.training.rank_file import read_rank

Options = Callable[..., dict[str, Any]]


def endless(grpo: Options, **changes: object) -> list[str]:
    """A run that is still going when it is stopped, with a checkpoint after every step."""
    return flags(**grpo(num_rollout=10000, save="run/checkpoints", save_interval=1, save_samples=False, **changes))


def saved(folder: Path) -> list[int]:
    return checkpoint.steps(folder / "run" / "checkpoints")


def stop(folder: Path, arguments: list[str], number: signal.Signals, group: bool) -> int:
    """Signal a run that has saved something; it must be gone in time. Returns its exit code."""
    with Run(folder, "train", *arguments) as run:
        run.wait_for(lambda: saved(folder), "a first checkpoint")
        assert len(run.processes()) > 5
        run.signal(number, group)
        run.wait_until_gone()
        done = run.finish()
        assert "Traceback" not in done.err
        return done.code


def assert_resumable(folder: Path) -> None:
    newest = checkpoint.find(str(folder / "run" / "checkpoints"), None)
    step = checkpoint.read_meta(newest)["step"]
    tensors, state = read_rank(newest, 0)
    assert state["scheduler"]["num_steps"] == step > 0
    assert any(name.startswith("optimizer.") for name in tensors)


def test_sigterm_to_the_driver(tmp_path: Path, grpo: Options) -> None:
    assert stop(tmp_path, endless(grpo), signal.SIGTERM, group=False) == 128 + signal.SIGTERM
    report = (tmp_path / "run" / "report.txt").read_text()
    assert report.startswith("vime: main: stopped by SIGTERM; checkpoints written so far are valid\n")
    assert_resumable(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "group"),
    [(signal.SIGTERM, True), (signal.SIGINT, False), (signal.SIGINT, True)],
    ids=["term-group", "int-driver", "int-group"],
)
def test_signals(tmp_path: Path, grpo: Options, number: signal.Signals, group: bool) -> None:
    """Ctrl-C in a terminal goes to the whole group."""
    assert stop(tmp_path, endless(grpo), number, group) == 128 + number
    newest = saved(tmp_path)[-1]
    assert_resumable(tmp_path)
    further = grpo(run_dir="again", num_rollout=newest + 1, load="run/checkpoints", save_samples=False)
    done = vime(tmp_path, "train", *flags(**further))
    assert done.code == 0, done.text
    assert [row["step"] for row in json_lines(tmp_path / "again" / "metrics.jsonl")] == [newest]


@pytest.mark.slow
@pytest.mark.parametrize("engines", [1, 2], ids=["direct", "router"])
def test_nothing_outlives_a_killed_driver(tmp_path: Path, grpo: Options, engines: int) -> None:
    """SIGKILL leaves the driver no time to end anything; its processes notice by themselves."""
    with Run(tmp_path, "train", *endless(grpo, rollout_num_gpus=engines)) as run:
        run.wait_for(lambda: saved(tmp_path), "a first checkpoint")
        run.signal(signal.SIGKILL)
        run.wait_until_gone(90.0)  # the reaper waits for engines, which look for their driver only now and then
        assert run.litter == [], list(run.temporary.rglob("*"))[:20]
        assert run.finish().code == -signal.SIGKILL
    assert_resumable(tmp_path)


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path: Path, grpo: Options) -> None:
    with Run(tmp_path, "train", *endless(grpo)) as run:
        run.wait_for(lambda: saved(tmp_path), "a first checkpoint")
        run.signal(signal.SIGINT)
        run.wait_for(lambda: run.ended or "SIGINT: stopping" in run.said(), "the first signal is heard")
        subprocess.run([sys.executable, "-c", "import time; time.sleep(0.6)"], check=True)  # past the grace
        if not run.ended:
            run.signal(signal.SIGINT)
        run.wait_until_gone()
        assert run.finish().code == 128 + signal.SIGINT


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
@pytest.mark.parametrize("when", ["session_", "engine"], ids=["cluster", "engine"])
def test_a_stop_while_the_stack_starts(tmp_path: Path, grpo: Options, number: signal.Signals, when: str) -> None:
    """As soon as Ray, and as soon as the engine, is being started."""
    with Run(tmp_path, "train", *endless(grpo, rollout_num_gpus=2)) as run:

        def there() -> bool:
            return any(re.search(when, title, re.IGNORECASE) for title in run.processes().values())

        run.wait_for(there, f"a process with {when} in its title")
        run.signal(number)
        run.wait_until_gone(60.0)  # an engine that is coming up is waited for
        done = run.finish()
        assert done.code == 128 + number, done.text
        assert done.complaints == [f"stopped by {number.name}; checkpoints written so far are valid"]


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_run(tmp_path: Path, grpo: Options) -> None:
    """``vime train ... | head -1``."""
    script = '"$0" -m vime_cli.main "$@" | head -1; echo "code ${PIPESTATUS[0]}"'
    command = ["bash", "-c", script, sys.executable, "train", *endless(grpo)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "main: 10000 steps\ncode 141\n"
    assert "Traceback" not in done.stderr
