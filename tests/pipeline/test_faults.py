"""What goes wrong inside a run: a corrupted sync, rewards that judge some samples or none."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Run, flags, json_lines, step_rows, vime

Options = Callable[..., dict[str, Any]]

SOME = """
import math

def score(sample):
    kind = sample.group % 4
    if kind == 1:
        raise ValueError("no such answer")
    if kind == 2:
        return None if sample.index else 1.0
    if kind == 3:
        return math.nan
    return len(sample.response_tokens) + sample.index
"""


@pytest.mark.parametrize("engines", [1, pytest.param(2, marks=pytest.mark.slow)], ids=["direct", "router"])
def test_a_corrupted_sync_stops_the_run(tmp_path: Path, grpo: Options, engines: int) -> None:
    done = vime(tmp_path, "train", *flags(**grpo(num_rollout=4, sync_fault="corrupt:2", rollout_num_gpus=engines)))
    assert done.code == 1, done.text
    assert "Traceback" not in done.err
    (complaint,) = done.complaints
    assert complaint.startswith("weights version 1 not committed: engine 0: received bytes have digest ")
    assert [receipt["version"] for receipt in json_lines(tmp_path / "run" / "receipts.jsonl")] == [0]
    assert complaint in (tmp_path / "run" / "report.txt").read_text()
    assert done.left == {}


@pytest.mark.slow
def test_a_reward_that_cannot_judge_some_samples(tmp_path: Path, grpo: Options) -> None:
    """A quarter of the groups each: scored, raises, None for some of a group, NaN."""
    (tmp_path / "some.py").write_text(SOME)
    options = grpo(reward="some.py:score", rollout_max_failure_ratio=0.9, rollout_batch_size=4)
    done = vime(tmp_path, "train", *flags(**options))
    assert done.code == 0, done.text
    rows = step_rows(tmp_path / "run")
    assert len(rows) == 2
    for row in rows:
        fates = {name.rpartition("/")[2]: n for name, n in row.items() if name.startswith("rollout/groups/")}
        assert fates["trained"] == 4 * (row["step"] + 1)
        assert fates["unscored"] > 0
        assert fates["failed"] == 0
    last = {name.rpartition("/")[2]: n for name, n in rows[-1].items() if name.startswith("rollout/groups/")}
    samples = [s for step in range(2) for s in json_lines(tmp_path / "run" / "samples" / f"step_{step:06d}.jsonl")]
    unscored = [sample for sample in samples if sample["outcome"] == "unscored"]
    assert len({sample["group"] for sample in unscored}) == last["unscored"]
    # those of a group that have a score are trained on without those that have none
    assert {sample["group"] % 4 for sample in samples if sample["outcome"] == "trained"} == {0, 2}
    said = [line for line in done.err.splitlines() if line.startswith("warning: rollout: ")]
    for kind in (": reward some.py:score: ValueError at ", "no score: not a number: ", "no score: not finite: "):
        assert sum(kind in line for line in said if " dropped " not in line) == 1, done.text
    reasons = {sample["reason"].split(":")[0] for sample in unscored}
    assert {"raised ValueError", "not finite"} <= reasons


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["None", "float('nan')", "1 / 0"])
def test_a_reward_that_can_judge_nothing(tmp_path: Path, grpo: Options, verdict: str) -> None:
    (tmp_path / "none.py").write_text(f"def score(sample):\n    return {verdict}\n")
    done = vime(tmp_path, "train", *flags(**grpo(reward="none.py:score")))
    assert done.code == 1, done.text
    (complaint,) = done.complaints
    assert complaint.startswith("step 0: 4 of 4 groups came to nothing (0 failed, 4 unscored;")
    assert "none.py:score" in complaint
    assert step_rows(tmp_path / "run") == []
    assert done.left == {}


@pytest.mark.parametrize(
    ("title", "engines", "log"),
    [
        ("ray::DirectActor", 1, "engine-0.log"),
        pytest.param(r"api_server", 2, "engine-[01].log", marks=pytest.mark.slow),
        pytest.param(r"launch_router|router_process", 2, "router.log", marks=pytest.mark.slow),
    ],
    ids=["direct", "server", "router"],
)
def test_what_died_is_named_with_its_log(tmp_path: Path, grpo: Options, title: str, engines: int, log: str) -> None:
    with Run(tmp_path, "train", *flags(**grpo(num_rollout=10000, save_samples=False, rollout_num_gpus=engines))) as run:
        run.wait_for(lambda: step_rows(tmp_path / "run"), "a first step")
        for pid, own in run.processes().items():
            if re.search(title, own):
                os.kill(pid, signal.SIGKILL)
        done = run.finish()
    assert done.code == 1, done.text
    assert "Traceback" not in done.err
    name = "router" if log == "router.log" else "engine [01]"
    assert re.search(rf"^(vime: )?{name}.*(died|ended with status|health)", done.err, re.MULTILINE), done.text
    assert re.search(
        rf"in {re.escape(str(tmp_path))}/run/logs/{log}|\({re.escape(str(tmp_path))}/run/logs/{log}", done.err
    )
