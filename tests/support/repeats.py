"""Whether a resumed run did what the one did that was not interrupted, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.runs import json_lines, step_rows

#: of a sample, what the resumed run must repeat
SAMPLED = (
    "group",
    "rollout",
    "prompt_id",
    "prompt_tokens",
    "response_tokens",
    "logprobs",
    "source",
    "reward",
    "status",
    "versions",
)


def figures(row: dict[str, Any]) -> dict[str, Any]:
    """The figures of a step that have nothing to do with time."""
    timed = ("perf/", "sync/", "rollout/requeued")
    return {name: value for name, value in row.items() if not name.startswith(timed)}


def assert_repeats(resumed: Path, whole: Path, first: int) -> None:
    """Run folders; ``resumed`` began with step ``first``, where ``whole`` had saved."""
    rows, wanted = step_rows(resumed), step_rows(whole)[first:]
    assert [figures(row) for row in rows] == [figures(row) for row in wanted]
    assert rows
    for row in rows:
        name = f"samples/step_{row['step']:06d}.jsonl"
        mine, theirs = json_lines(resumed / name), json_lines(whole / name)
        assert mine
        assert [[s[key] for key in SAMPLED] for s in mine] == [[s[key] for key in SAMPLED] for s in theirs]
    receipts, later = (json_lines(folder / "receipts.jsonl") for folder in (whole, resumed))
    assert [r["digest"] for r in later] == [r["digest"] for r in receipts[first:]]
