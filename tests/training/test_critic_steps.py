"""The critic in the trainer's step: values before it, training on returns after it, and a place in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.one_rank import train, without_times
from vime_core.api.errors import CheckpointError
from vime_core.observe.loss_inputs import read_loss_inputs, steps_of

PPO: dict[str, Any] = {"advantage_estimator": "ppo", "lambd": 0.9}


def test_the_critic_learns_beside_the_policy(folders: dict[str, str], tmp_path: Path) -> None:
    trained = train(folders["policy"], 3, losses=tmp_path, algorithm=PPO, model={"critic_lr": 1e-2})
    first, last = (read_loss_inputs(tmp_path, step).columns for step in (0, 2))
    assert not first["values"].any()  # the head starts from zeros
    assert last["values"].std() > 0
    np.testing.assert_allclose(first["returns"], first["advantage"], atol=1e-6)
    seen = trained["rows"][-1]
    assert {"train/value_loss", "train/critic-grad_norm", "train/loss", "perf/values_time"} <= seen.keys()
    assert seen["train/critic-lr-pg_0"] == 1e-2
    assert trained["scores"][1] != trained["scores"][0]


def test_first_the_critic_alone(folders: dict[str, str], tmp_path: Path) -> None:
    trained = train(folders["policy"], 3, losses=tmp_path, algorithm=PPO | {"num_critic_only_steps": 2})
    scores, rows = trained["scores"], trained["rows"]
    assert scores[0] == scores[1] == scores[2] != scores[3]
    assert ["train/loss" in row for row in rows] == [False, False, True]
    assert all("train/value_loss" in row for row in rows)
    assert steps_of(tmp_path) == [2]


@pytest.mark.parametrize("only", [0, 2])
def test_a_resume_goes_on_with_the_same_critic(folders: dict[str, str], tmp_path: Path, only: int) -> None:
    algorithm = PPO | {"num_critic_only_steps": only}
    whole = train(folders["policy"], 4, algorithm=algorithm)
    start = train(folders["policy"], 2, algorithm=algorithm, save=tmp_path / "saved")
    rest = train(folders["policy"], 2, first=2, algorithm=algorithm, resume=tmp_path / "saved")
    rows = [without_times(row) for row in start["rows"] + rest["rows"]]
    assert rows == [without_times(row) for row in whole["rows"]]
    assert rest["scores"] == whole["scores"][2:]


def test_a_checkpoint_without_a_critic_is_refused(folders: dict[str, str], tmp_path: Path) -> None:
    train(folders["policy"], 1, save=tmp_path / "saved")
    with pytest.raises(CheckpointError, match="no critic"):
        train(folders["policy"], 1, first=1, algorithm=PPO, resume=tmp_path / "saved")


def test_weights_without_the_optimizer_are_where_training_goes_on(folders: dict[str, str], tmp_path: Path) -> None:
    """The optimizer's own float32 copies follow the loaded weights; else the first update would undo the load."""
    bf16 = {"megatron": {"bf16": True, "lr": 1e-3}}
    trained = train(folders["policy"], 3, save=tmp_path / "saved", **bf16)
    still = {"megatron": {"bf16": True, "lr": 0.0}, "model": {"load_optim": False}}
    resumed = train(folders["policy"], 1, first=3, resume=tmp_path / "saved", **still)
    assert resumed["scores"] == [trained["scores"][-1]] * 2
