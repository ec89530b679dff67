"""Trainer and engines that take turns on shared devices: the whole cycle, on a device where only the trainer's memory
really moves, because vLLM's CPU worker keeps its own while it sleeps."""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Run, flags, json_lines, step_rows, vime

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow

CYCLE = {"colocate": True, "offload_train": True, "offload_rollout": True}
GAP = "train/train_rollout_logprob_abs_diff"
TRANSPORTS: dict[str, dict[str, Any]] = {
    "direct": {},
    "router": {"engine_transport": "router", "rollout_sleep_level": 2},
    "two-ranks": {"actor_num_gpus_per_node": 2, "use_distributed_optimizer": True},
}


def run(folder: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    done = vime(folder, "train", *flags(**options))
    assert done.code == 0, done.text
    assert done.left == {}
    return step_rows(folder / options["run_dir"])


def learnt(row: dict[str, Any]) -> dict[str, Any]:
    """What says what was trained on and how, and nothing of time."""
    return {name: value for name, value in row.items() if name.startswith(("train/", "rollout/response"))}


def times_slept(folder: Path) -> list[int]:
    """By engine: vLLM's workers say so."""
    logs = sorted((folder / "logs").glob("engine-*.log"))
    return [len(re.findall("to fall asleep", log.read_text(errors="replace"))) for log in logs]


def weights(folder: Path) -> dict[str, str]:
    """File -> digest of its bytes, of all checkpoints and exports of a run."""
    files = [file for name in ("saved", "hf") for file in sorted((folder / name).rglob("*.safetensors"))]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("name", TRANSPORTS)
def test_taking_turns_changes_nothing(tmp_path: Path, grpo: Options, name: str) -> None:
    """Checkpoints, evaluations and an export in between; against a run whose trainer and engines never make room."""
    shared = TRANSPORTS[name] | {"eval_interval": 1, "eval_temperature": 0.0, "num_rollout": 3}
    shared |= {"eval_prompt_data": ["held", grpo()["prompt_data"] + "@[:8]"], "save_interval": 2}
    turns = run(tmp_path, grpo(run_dir="turns", save="turns/saved", save_hf="turns/hf", **CYCLE, **shared))
    shared.pop("rollout_sleep_level", None)
    engines = {"rollout_num_gpus": shared.get("actor_num_gpus_per_node", 1)}
    apart = run(tmp_path, grpo(run_dir="apart", save="apart/saved", save_hf="apart/hf", **engines, **shared))
    assert [learnt(row) for row in turns] == [learnt(row) for row in apart]
    assert all(0 < row[GAP] <= 1e-5 for row in turns)
    assert all(row["perf/offload_bytes"] > 0 and row["perf/offload_time"] > 0 for row in turns)
    assert all("perf/offload_bytes" not in row for row in apart)
    # before the first sync, before each training step, and for the checkpoints of steps 2 and 3
    slept = times_slept(tmp_path / "turns")
    assert len(slept) == engines["rollout_num_gpus"]
    assert set(slept) == {1 + 3 + 2}
    assert set(times_slept(tmp_path / "apart")) == {0}
    receipts = json_lines(tmp_path / "turns" / "receipts.jsonl")
    assert [receipt["version"] for receipt in receipts] == [0, 1, 2, 3]
    mine, theirs = weights(tmp_path / "turns"), weights(tmp_path / "apart")
    assert mine == theirs
    assert len(mine) > 2  # two checkpoints and an export


@pytest.mark.parametrize("transport", ["direct", "router"])
def test_a_corrupted_sync_ends_the_run_with_nobody_served(tmp_path: Path, grpo: Options, transport: str) -> None:
    options = grpo(num_rollout=4, sync_fault="corrupt:2", engine_transport=transport, **CYCLE)
    done = vime(tmp_path, "train", *flags(**options))
    assert done.code == 1, done.text
    assert "Traceback" not in done.err
    (complaint,) = done.complaints
    assert complaint.startswith("weights version 1 not committed: engine 0: received bytes have digest ")
    assert complaint.endswith("; it serves the version it had")
    assert [receipt["version"] for receipt in json_lines(tmp_path / "run" / "receipts.jsonl")] == [0]
    assert done.left == {}


def test_a_stop_ends_engines_that_sleep_or_wake(tmp_path: Path, grpo: Options) -> None:
    with Run(tmp_path, "train", *flags(**grpo(num_rollout=1000, **CYCLE))) as run:
        run.wait_for(lambda: step_rows(tmp_path / "run"), "no step was recorded")
        run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code == 130, done.text
    assert "Traceback" not in done.err
    assert done.left == {}
