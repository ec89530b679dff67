"""Whole runs of a model with experts that replay their choice: engine, samples, trainer, syncs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import build_model
from tests.support.runs import flags, forgetful, json_lines, step_rows, vime

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow

GAP, DIFF = "train/train_rollout_logprob_abs_diff", "train/routing_replay_diff"
RUNS: dict[str, dict[str, Any]] = {
    "direct": {"use_kl_loss": True},
    "two-servers": {"rollout_num_gpus": 2, "num_steps_per_rollout": 2},
    "pipeline": {"actor_num_gpus_per_node": 2, "pipeline_model_parallel_size": 2, "recompute_granularity": "full"},
}


def run(folder: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    options |= {"hf_checkpoint": build_model(folder / "moe", "qwen3_moe")}
    done = vime(folder, "train", *flags(**options))
    assert done.code == 0, done.text
    assert done.left == {}
    rows = step_rows(folder / "run")
    assert len(rows) == options["num_rollout"]
    return rows


@pytest.mark.parametrize("name", RUNS)
def test_the_samplers_experts_are_replayed(tmp_path: Path, grpo: Options, name: str) -> None:
    rows = run(tmp_path, grpo(use_rollout_routing_replay=True, **RUNS[name]))
    for row in rows:
        assert 0 < row[GAP] <= 1e-5
        assert 0 <= row[DIFF] < 0.5
    if "use_kl_loss" in RUNS[name]:
        assert rows[0]["train/kl_loss"] == 0.0  # the reference ran with the same experts
    for receipt in json_lines(tmp_path / "run" / "receipts.jsonl"):
        assert all(0 <= engine["canary_gap"] <= 1e-4 for engine in receipt["engines"])


def test_replay_keeps_trainer_and_sampler_together_in_bfloat16(tmp_path: Path, grpo: Options) -> None:
    """Rounding sends some tokens elsewhere; replay brings them back."""
    shared = {"bf16": True, "vllm_dtype": "bfloat16", "num_rollout": 1, "rollout_batch_size": 16, "lr": 0.0}
    gaps = {}
    for replayed in (False, True):
        (tmp_path / str(replayed)).mkdir()
        options = grpo(use_rollout_routing_replay=replayed, reward=f"{tmp_path}/my_reward.py:score", **shared)
        (row,) = run(tmp_path / str(replayed), options)
        gaps[replayed] = row[GAP]
        assert (DIFF in row) == replayed
    assert row[DIFF] > 0
    assert gaps[True] < gaps[False]


@pytest.mark.parametrize("steps", [1, 2])
def test_the_trainers_own_experts_are_replayed(tmp_path: Path, grpo: Options, steps: int) -> None:
    rows = run(tmp_path, grpo(use_routing_replay=True, num_steps_per_rollout=steps, lr=1e-2))
    for row in rows:
        assert 0 < row[GAP] <= 1e-5
        assert (row[DIFF] == 0.0) == (steps == 1)  # before its first update a router chooses as it did


def test_a_rollout_that_drops_the_experts_is_an_error(tmp_path: Path, grpo: Options) -> None:
    options = grpo(use_rollout_routing_replay=True, rollout_function=forgetful(tmp_path, "routing"))
    options |= {"hf_checkpoint": build_model(tmp_path / "moe", "qwen3_moe")}
    done = vime(tmp_path, "train", *flags(**options))
    assert done.code == 1
    assert done.left == {}
    assert "routing replay: group" in done.err
    assert "has routed experts of 0 tokens" in done.err
