from __future__ import annotations

import datetime
import io
import math

import pytest

from vime_core.api.weight_sync import EngineProof, Receipt
from vime_core.observe.plain import PlainProgress
from vime_core.observe.recorder import Recorder, sync_metrics
from vime_core.observe.runfolder import RunFolder
from vime_core.observe.summary import Summary, Tally, Target, render
from vime_core.observe.tensorboard import TensorBoardWriter


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(str(tmp_path / "run"), "run", datetime.datetime(2026, 1, 1))


def receipt(version, canary=2e-7, seconds=0.5):
    return Receipt(version, "d" * 16, 25, 1_000_000_000, seconds, (EngineProof("e0", version, "d" * 16, 25, canary),))


def step_metrics(**more):
    return {"perf/step_time": 2.0, "perf/samples_per_sec": 32.0, "perf/tokens_per_sec": 500.0, **more}


def test_a_run_is_told_once_and_seen_everywhere(folder):
    stream = io.StringIO()
    recorder = Recorder(folder, PlainProgress(stream, lambda: 0.0), TensorBoardWriter(folder.tensorboard))
    recorder.progress.stage("grpo", 2)
    recorder.sync(receipt(1))
    recorder.evaluation(0, {"eval/addition": 0.5, "eval/addition-truncated_ratio": 0.0})
    recorder.sync(receipt(2))
    recorder.step(0, step_metrics(**{"rollout/raw_reward": 0.5, "train/step": 1}))
    recorder.step(1, step_metrics(**{"rollout/raw_reward": 0.75, "train/step": 2}))
    recorder.close()
    recorder.close()
    assert [r["version"] for r in folder.read_receipts()] == [1, 2]
    assert folder.series("rollout/raw_reward") == [(0, 0.5), (1, 0.75)]
    assert folder.series("sync/version") == [(0, 2)]
    assert folder.series("eval/addition") == [(0, 0.5)]
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "grpo: 2 steps",
        f"sync {receipt(1).line()}",
        "eval after 0 steps: addition 0.5",
        "grpo step 0 (1/2)",
        "grpo step 1 (2/2)",
    ]
    assert lines[3].endswith(f"sync {receipt(2).line()}")
    assert list(folder.tensorboard.glob("events.*"))


def test_a_name_that_the_catalogue_lacks_is_logged_all_the_same(folder):
    recorder = Recorder(folder, PlainProgress(io.StringIO()))
    recorder.step(0, {"train/los": 1.0})
    assert folder.series("train/los") == [(0, 1.0)]


def test_a_sync_without_a_duration_has_no_speed():
    assert "perf/update_weights_gbps" not in sync_metrics(receipt(1, seconds=0.0))
    assert sync_metrics(receipt(1))["perf/update_weights_gbps"] == pytest.approx(2.0)


def test_the_summary_of_a_recorded_run(folder):
    recorder = Recorder(folder, PlainProgress(io.StringIO()))
    recorder.evaluation(0, {"eval/addition": 0.512})
    for version, gap in enumerate([1e-7, 3e-6, 2e-7], 1):
        recorder.sync(receipt(version, canary=gap / 10))
        recorder.step(
            version - 1,
            step_metrics(
                **{
                    "train/train_rollout_logprob_abs_diff": gap,
                    "rollout/groups/trained": 8 * version,
                    "rollout/groups/unscored": 1,
                }
            ),
        )
    recorder.evaluation(3, {"eval/addition": 0.934})
    text = render(
        Summary(
            "quickstart",
            "finished",
            folder.path,
            recorder.tally,
            target=Target("eval/addition", "eval/addition >= 0.9", True),
            wall=75.0,
            phases={"generate": 30.0, "train": 40.0, "sync": 5.0},
        )
    )
    assert text.splitlines() == [
        "vime: quickstart: finished",
        "  target       eval/addition 0.512 -> 0.934 (eval/addition >= 0.9: reached)",
        "  steps        3 in 1m15s, 32.0 samples/s, 500 tokens/s while stepping",
        "  time         train 40.0s (53%), generate 30.0s (40%), sync 5.0s (7%)",
        "  log-prob gap 3.0e-06 at most, trainer against sampler",
        "  weight sync  3 committed, 3.000 GB in 1.5s, worst canary 3.0e-07",
        "  groups       trained 24, unscored 1",
        f"  run folder   {folder.path}",
    ]
    assert folder.write_text("report.txt", text) == folder.report


def test_a_summary_of_nothing_invents_nothing(tmp_path):
    text = render(Summary("run", "stopped by SIGINT", tmp_path, Tally(), Target("eval/x", "eval/x >= 1", False)))
    assert text.splitlines()[1:-1] == [
        "  target       eval/x - -> - (eval/x >= 1: MISSED)",
        "  steps        0 in -, - samples/s, - tokens/s while stepping",
        "  time         -",
        "  log-prob gap - at most, trainer against sampler",
        "  weight sync  -",
        "  groups       -",
    ]
    assert "0.0" not in text.replace(str(tmp_path), "")


def test_a_gap_that_is_not_a_number_is_the_worst_and_is_never_forgotten(folder):
    recorder = Recorder(folder, PlainProgress(io.StringIO()))
    for step, gap in enumerate([1e-7, math.nan, 1e-6]):
        recorder.step(step, {"train/train_rollout_logprob_abs_diff": gap})
    recorder.sync(receipt(1, canary=None))
    text = render(Summary("run", "finished", folder.path, recorder.tally))
    assert "log-prob gap nan at most" in text
    assert "worst canary nan" in text
    assert "attention    1 metric values were not finite" in text
