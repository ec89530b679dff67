"""Passes without gradient are packed as in training, or to a size of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.models import build_model
from tests.support.one_rank import train
from vime_core.api.errors import DataError
from vime_core.observe.loss_inputs import read_loss_inputs

TWO = {"num_steps_per_rollout": 2}


def test_another_size_gives_the_same_log_probs_up_to_rounding(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", "qwen3")
    rows = {}
    for name, own in (("as trained", {}), ("own", {"log_probs_max_tokens_per_gpu": 40})):
        (rows[name],) = train(model, 1, losses=tmp_path / name, train=TWO | own)["rows"]
    first, second = (read_loss_inputs(tmp_path / name, 0).columns["old_logp"] for name in rows)
    np.testing.assert_allclose(second, first, atol=5e-6)
    assert rows["own"]["train/loss"] == pytest.approx(rows["as trained"]["train/loss"], abs=1e-5)


def test_the_size_is_kept(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", "qwen3")
    with pytest.raises(DataError, match="do not fit into a micro-batch of 9 tokens"):
        train(model, 1, train=TWO | {"log_probs_max_tokens_per_gpu": 9})
