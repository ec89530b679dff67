"""A whole run with a reference that follows the policy, and what it keeps of each step's loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.repeats import figures
from tests.support.runs import flags, step_rows, vime
from vime_core.observe.catalog import unknown
from vime_core.observe.loss_inputs import read_loss_inputs, steps_of

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow


def test_a_reference_that_follows_survives_a_resume(tmp_path: Path, grpo: Options) -> None:
    """Updated before steps 2 and 4; resumed at 3, so that the reference is neither the folder's nor the policy."""
    options = grpo(num_rollout=5, use_kl_loss=True, ref_update_interval=2, save="run/checkpoints", save_interval=3)
    whole = vime(tmp_path, "train", *flags(**options))
    assert whole.code == 0, whole.text
    rows = step_rows(tmp_path / "run")
    assert [row["train/kl_loss"] == 0.0 for row in rows] == [True, False, True, False, True]
    assert unknown(name for row in rows for name in row if "/" in name) == []
    again = options | {"run_dir": "again", "load": "run/checkpoints", "ckpt_step": 3, "save": "again/checkpoints"}
    rest = vime(tmp_path, "train", *flags(**again))
    assert rest.code == 0, rest.text
    assert [figures(row) for row in step_rows(tmp_path / "again")] == [figures(row) for row in rows[3:]]
    assert steps_of(tmp_path / "run" / "loss") == [0, 1, 2, 3, 4]
    for step in (3, 4):
        mine, theirs = (read_loss_inputs(tmp_path / run / "loss", step).columns for run in ("again", "run"))
        assert mine.keys() == theirs.keys()
        for name, column in mine.items():
            np.testing.assert_array_equal(column, theirs[name], err_msg=name)
