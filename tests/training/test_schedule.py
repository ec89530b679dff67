"""The rate of every update: none is made with rate 0, and a decay ends with the update after the last."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.one_rank import train
from tests.support.train_ranks import make_batch
from vime_core.batch.step_batch import StepBatch
from vime_core.config.sections import Config
from vime_core.training.optimizer import mean_of_steps, schedule_of, set_rate


def rates(updates: int, **megatron: object) -> list[float]:
    inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = schedule_of(Config().replace("megatron", lr=1.0, **megatron), inner, updates)
    found = []
    for _ in range(updates):
        set_rate(scheduler)
        found.append(inner.param_groups[0]["lr"])
        scheduler.num_steps += 1
    return found


@pytest.mark.parametrize(
    ("updates", "megatron", "expected"),
    [
        (4, {"lr_decay_style": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        (5, {"lr_decay_style": "linear"}, [1.0, 0.8, 0.6, 0.4, 0.2]),
        (1, {"lr_decay_style": "linear"}, [1.0]),
        (1, {"lr_decay_style": "cosine"}, [1.0]),
        (2, {"lr_decay_style": "cosine"}, [1.0, 0.5]),
        (4, {"lr_decay_style": "linear", "min_lr": 0.2}, [1.0, 0.8, 0.6, 0.4]),
        (6, {"lr_decay_style": "linear", "lr_warmup_iters": 2}, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        (4, {"lr_decay_style": "linear", "lr_decay_iters": 2, "min_lr": 0.1}, [1.0, 0.55, 0.1, 0.1]),
        (3, {"lr_decay_style": "constant"}, [1.0] * 3),
        (4, {"lr_decay_style": "constant", "lr_warmup_iters": 4}, [0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_the_rate_of_every_update(updates: int, megatron: dict[str, object], expected: list[float]) -> None:
    assert rates(updates, **megatron) == pytest.approx(expected)


def test_a_skipped_update_is_counted_and_in_no_mean() -> None:
    made = {"loss": 2.0, "grad_norm": 1.0, "skipped": 0.0, "lr-pg_0": 0.1}
    skipped = {"loss": math.nan, "grad_norm": math.inf, "skipped": 1.0, "lr-pg_0": 0.1}
    assert mean_of_steps([made, skipped, made]) == {"loss": 2.0, "grad_norm": 1.0, "lr-pg_0": 0.1, "skipped_steps": 1.0}
    assert mean_of_steps([skipped, skipped]) == {"lr-pg_0": 0.1, "skipped_steps": 2.0}


def test_a_step_in_which_no_token_is_trainable_moves_nothing_and_is_counted(folders: dict[str, str]) -> None:
    """Weight decay alone is no update."""

    def masked(step: int) -> StepBatch:
        batch = make_batch(step)
        return replace(batch, mask=np.zeros_like(batch.mask)) if step == 1 else batch

    seen = train(folders["policy"], 3, batch_of=masked, megatron={"lr": 1e-2, "weight_decay": 0.5})
    rows, scores = seen["rows"], seen["scores"]
    assert [row["train/skipped_steps"] for row in rows] == [0.0, 1.0, 0.0]
    assert "train/grad_norm" not in rows[1]
    assert "train/loss" not in rows[1]
    assert scores[1] == scores[2] != scores[3]
