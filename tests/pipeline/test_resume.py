"""A resumed run goes on exactly as the one that was not interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import flags, json_lines, step_rows, vime

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow

#: of a sample, what the resumed run must repeat to the last bit
SAMPLED = (
    "group",
    "rollout",
    "prompt_id",
    "prompt_tokens",
    "response_tokens",
    "source",
    "reward",
    "status",
    "versions",
)


def repeats(row: dict[str, Any]) -> dict[str, Any]:
    """The figures of a step that have nothing to do with time."""
    timed = ("perf/", "sync/", "rollout/requeued")
    return {name: value for name, value in row.items() if not name.startswith(timed)}


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

    for step in range(3, 6):
        mine, theirs = (
            json_lines(tmp_path / folder / "samples" / f"step_{step:06d}.jsonl") for folder in ("run", "again")
        )
        assert [[s[key] for key in SAMPLED] for s in mine] == [[s[key] for key in SAMPLED] for s in theirs]
        assert [s["logprobs"] for s in mine] == [s["logprobs"] for s in theirs]
    rows, others = step_rows(tmp_path / "run")[3:], step_rows(tmp_path / "again")
    assert [repeats(row) for row in others] == [repeats(row) for row in rows]
    receipts, later = (json_lines(tmp_path / folder / "receipts.jsonl") for folder in ("run", "again"))
    assert [r["version"] for r in later] == [3, 4, 5, 6]
    assert [r["digest"] for r in later] == [r["digest"] for r in receipts[3:]]
