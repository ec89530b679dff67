from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from vime_core.observe.catalog import known
from vime_core.observe.columns import COLUMNS, duration, evaluation_text, number, percent, rate
from vime_core.observe.live import LiveProgress
from vime_core.observe.pace import Pace
from vime_core.observe.plain import PlainProgress
from vime_core.observe.progress import NoProgress, make_progress

METRICS = {
    "rollout/raw_reward": 0.53125,
    "train/loss": -0.0123,
    "rollout/response_len/mean": 4.25,
    "rollout/truncated_ratio": 0.125,
    "train/train_rollout_logprob_abs_diff": 3.14e-7,
    "train/grad_norm": 0.812,
    "rollout/staleness/mean": 0.0,
    "perf/tokens_per_sec": 12345.6,
    "perf/step_time": 2.125,
}
RECEIPT = "v13 25 tensors 0.002 GB in 0.04s digest 0123abcd x1 canary 2.4e-07"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_plain_lines():
    stream, clock = io.StringIO(), Clock()
    view = PlainProgress(stream, clock)
    view.stage("grpo", 100)
    view.sync("v1 initial")
    view.phase("generate")
    view.note("eval after 0 steps: addition 0.512")
    clock.now = 20.0
    view.sync(RECEIPT)
    view.step(9, METRICS)
    clock.now = 22.0
    view.step(10, {})
    view.sync("v15 last")
    view.close()
    view.close()
    assert stream.getvalue().splitlines() == [
        "grpo: 100 steps",
        "sync v1 initial",
        "eval after 0 steps: addition 0.512",
        "grpo step 9 (10/100)  reward 0.531  loss -0.0123  len 4.2  trunc 12%  gap 3.1e-07  grad 0.812  stale 0  "
        f"tok/s 12,346  step 2.1s  left 30m00s  sync {RECEIPT}",
        "grpo step 10 (11/100)  reward -  loss -  len -  trunc -  gap -  grad -  stale -  tok/s -  step -  left 16m19s",
        "sync v15 last",
    ]


def test_a_resumed_stage_counts_from_its_first_step_to_the_last():
    stream = io.StringIO()
    view = PlainProgress(stream, Clock())
    view.stage("grpo", 59, 57)
    view.step(57, {})
    view.step(58, {})
    first, *steps = stream.getvalue().splitlines()
    assert first == "grpo: 59 steps, resumed at step 57"
    assert [line.split("  ")[0] for line in steps] == ["grpo step 57 (58/59)", "grpo step 58 (59/59)"]


def test_a_stage_without_a_number_of_steps():
    stream = io.StringIO()
    view = PlainProgress(stream, Clock())
    view.stage("warm-up", None)
    view.step(0, {"train/loss": 2.5, "rollout/raw_reward": None})
    first, second = stream.getvalue().splitlines()
    assert first == "warm-up: as many steps as it takes"
    assert second.startswith("warm-up step 0  reward -  loss 2.5  ")
    assert second.endswith("  left -")


def picture(view, console):
    """The last frame."""
    console.export_text()
    view.refresh()
    return console.export_text()


def test_the_live_view_shows_the_numbers_and_a_dash_for_what_is_missing():
    clock = Clock()
    console = Console(record=True, force_terminal=True, width=100, height=40, file=io.StringIO())
    view = LiveProgress(console, clock, auto_refresh=False)
    view.stage("grpo", 100)
    before = picture(view, console)
    assert "vime grpo" in before
    assert "step - (0/100)" in before
    assert "sync  -" in before
    assert "0.0%" not in before
    for column in COLUMNS:
        assert f"{column.label} " in before
    view.sync(RECEIPT)
    clock.now = 20.0
    view.step(9, METRICS)
    view.phase("generate")
    clock.now = 23.0
    after = picture(view, console)
    for text in ("step 9 (10/100)", "23.0s gone, 34m30s left", "0.531", "12%", "3.1e-07", "12,346", RECEIPT):
        assert text in after, text
    assert "generating for 3.0s" in after
    view.note("eval after 9 steps: [addition] 0.9")
    assert "eval after 9 steps: [addition] 0.9" in console.export_text()
    view.close()
    view.close()
    assert "done" in console.export_text()


def test_the_live_view_fits_a_narrow_terminal():
    console = Console(record=True, force_terminal=True, width=40, height=40, file=io.StringIO())
    view = LiveProgress(console, Clock(), auto_refresh=False)
    view.stage("grpo", 10)
    view.step(0, METRICS)
    lines = picture(view, console).splitlines()
    view.close()
    assert max(len(line) for line in lines) <= 40


def test_every_column_is_a_metric_of_the_catalogue():
    for column in COLUMNS:
        assert known(column.name), column


def test_auto_is_plain_in_a_pipe_and_live_on_a_terminal(monkeypatch):
    assert isinstance(make_progress("auto", io.StringIO()), PlainProgress)
    assert isinstance(make_progress("off", io.StringIO()), NoProgress)
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(make_progress("auto", stream), PlainProgress)
        monkeypatch.setenv("TERM", "xterm")
        view = make_progress("auto", stream)
        assert isinstance(view, LiveProgress)
        view.close()
    os.close(controller)


def test_without_a_terminal_rich_is_not_imported():
    code = (
        "import sys; from vime_core.observe.progress import make_progress\n"
        "from vime_core.observe.recorder import Recorder\n"
        "view = make_progress('auto', sys.stdout); view.stage('s', 1); view.step(0, {}); view.close()\n"
        "print(sorted({'rich', 'torch', 'numpy', 'tensorboard'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(0.0), "0"),
        (number(0.53125), "0.531"),
        (number(-12.345), "-12.3"),
        (number(3.14e-7), "3.1e-07"),
        (number(1234.5), "1,234"),
        (number(2.5e9), "2.5e+09"),
        (number(float("nan")), "nan"),
        (number(float("inf")), "inf"),
        (percent(0.125), "12%"),
        (percent(float("nan")), "nan"),
        (rate(99.94), "99.9"),
        (rate(float("nan")), "nan"),
        (duration(0.0), "0.0s"),
        (duration(59.96), "1m00s"),
        (duration(185.4), "3m05s"),
        (duration(7620.0), "2h07m"),
        (duration(None), "-"),
        (duration(float("nan")), "-"),
    ],
)
def test_numbers_as_text(text, expected):
    assert text == expected


def test_an_evaluation_as_text_names_the_results_only():
    row = {"eval/step": 4, "eval/add": 0.934, "eval/add-truncated_ratio": 0.1, "eval/add/response_len/mean": 3.0}
    assert evaluation_text(4, row | {"eval/odd": None, "perf/eval_time": 3.0}) == "eval after 4 steps: add 0.934, odd -"
    assert evaluation_text(4, {}) == "eval after 4 steps: -"


def test_the_time_left_counts_this_run_and_not_the_steps_before_a_resume():
    clock = Clock()
    pace = Pace("grpo", 100, clock)
    assert pace.left is None
    clock.now = 10.0
    pace.step(89)
    assert pace.position == "step 89 (90/100)"
    assert pace.left == 100.0
    pace.step(99)
    assert pace.left == 0.0
