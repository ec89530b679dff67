"""Whole runs with score centering: the engine's likeliest tokens, their log-probs from every trainer layout, a loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import flags, forgetful, step_rows, vime

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow

TOP = ("rollout_top_ids", "rollout_top_logp")
CENTRED = {"pg_loss_type": "reinforce", "use_score_centering": True, "score_centering_top_k": 24}
RUNS: dict[str, dict[str, Any]] = {
    "direct": {"use_tis": True},
    "two-servers": {"rollout_num_gpus": 2},
    "tensor-parallel": {"actor_num_gpus_per_node": 2, "tensor_model_parallel_size": 2},
}


def run(folder: Path, name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    done = vime(folder, "train", *flags(**options | {"run_dir": name}))
    assert done.code == 0, done.text
    assert done.left == {}
    return step_rows(folder / name)


@pytest.mark.parametrize("name", RUNS)
def test_the_gradient_is_centred(tmp_path: Path, grpo: Options, name: str) -> None:
    """The same samples with and without. Of the two optimizer steps the first is on-policy, where the mean score is 0
    and centering changes nothing but rounding; the second is not."""
    steps = {"num_steps_per_rollout": 2, "lr": 1e-2}
    (centered, *_) = run(tmp_path, "with", grpo(**CENTRED, **RUNS[name], **steps))
    (plain, *_) = run(tmp_path, "without", grpo(pg_loss_type="reinforce", **RUNS[name], **steps))
    gap = "train/train_rollout_logprob_abs_diff"
    assert 0 < centered[gap] <= 1e-5
    assert centered["rollout/raw_reward"] == plain["rollout/raw_reward"]
    assert plain["train/grad_norm"] > 0
    assert abs(centered["train/grad_norm"] / plain["train/grad_norm"] - 1) > 1e-5  # rounding: below 1e-6


def test_a_rollout_that_drops_them_is_an_error(tmp_path: Path, grpo: Options) -> None:
    done = vime(tmp_path, "train", *flags(**grpo(**CENTRED, rollout_function=forgetful(tmp_path, *TOP))))
    assert done.code == 1
    assert done.left == {}
    assert "score centering: group" in done.err
    assert "has likeliest tokens of 0 tokens" in done.err
