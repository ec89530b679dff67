"""A resumed run goes on exactly as the one that was not interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.repeats import assert_repeats
from tests.support.runs import flags, json_lines, step_rows, vime

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "optimizer", [{}, {"lr_decay_style": "linear", "lr_warmup_iters": 2}], ids=["constant", "decay"]
)
def test_six_steps_are_three_and_three(tmp_path: Path, grpo: Options, optimizer: dict[str, Any]) -> None:
    """The data has ten rows, so that the second half begins in the middle of another epoch."""
    options = grpo(
        num_rollout=6,
        prompt_data=grpo()["prompt_data"] + "@[:10]",
        num_steps_per_rollout=2,
        save="run/checkpoints",
        save_interval=3,
        **optimizer,
    )
    whole = vime(tmp_path, "train", *flags(**options))
    assert whole.code == 0, whole.text
    again = options | {"run_dir": "again", "load": "run/checkpoints", "ckpt_step": 3, "save": "again/checkpoints"}
    rest = vime(tmp_path, "train", *flags(**again))
    assert rest.code == 0, rest.text

    assert_repeats(tmp_path / "again", tmp_path / "run", first=3)
    assert [row["step"] for row in step_rows(tmp_path / "again")] == [3, 4, 5]
    assert [r["version"] for r in json_lines(tmp_path / "again" / "receipts.jsonl")] == [3, 4, 5, 6]
