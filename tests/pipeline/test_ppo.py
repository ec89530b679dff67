"""PPO from the command line: a critic beside the policy, its first steps alone, and an exact resume of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import flags, json_lines, step_rows, vime

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow


def repeats(row: dict[str, Any]) -> dict[str, Any]:
    """The figures of a step that have nothing to do with time."""
    timed = ("perf/", "sync/", "rollout/requeued")
    return {name: value for name, value in row.items() if not name.startswith(timed)}


def test_critic_first_then_both_and_resumed(tmp_path: Path, grpo: Options) -> None:
    options = grpo(
        advantage_estimator="ppo",
        critic_lr=3e-3,
        num_critic_only_steps=1,
        num_rollout=4,
        num_steps_per_rollout=2,
        save="run/checkpoints",
        save_interval=2,
    )
    whole = vime(tmp_path, "train", *flags(**options))
    assert whole.code == 0, whole.text
    rows = step_rows(tmp_path / "run")
    receipts = [r["digest"] for r in json_lines(tmp_path / "run" / "receipts.jsonl")]

    assert all(row["train/critic-lr-pg_0"] == 3e-3 for row in rows)
    assert all(row["train/critic-grad_norm"] > 0 for row in rows)
    # a critic starts from zeros, so at first advantages are the returns, and here those are the rewards
    assert rows[0]["train/values/mean"] == 0.0
    assert rows[0]["train/advantages/mean"] == pytest.approx(rows[0]["train/returns/mean"])
    assert rows[1]["train/values/mean"] != 0.0
    # alone in the first step
    assert ["train/pg_loss" in row for row in rows] == [False, True, True, True]
    assert receipts[0] == receipts[1]
    assert len(set(receipts[1:])) == 4

    again = options | {"run_dir": "again", "load": "run/checkpoints", "ckpt_step": 2, "save": "again/checkpoints"}
    rest = vime(tmp_path, "train", *flags(**again))
    assert rest.code == 0, rest.text
    assert [repeats(row) for row in step_rows(tmp_path / "again")] == [repeats(row) for row in rows[2:]]
    later = [r["digest"] for r in json_lines(tmp_path / "again" / "receipts.jsonl")]
    assert later == receipts[2:]
