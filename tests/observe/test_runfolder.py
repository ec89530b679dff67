from __future__ import annotations

import datetime
import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vime_core.api.errors import ConfigError, DataError
from vime_core.api.reward import Score
from vime_core.api.sample import Sample, Status
from vime_core.api.weight_sync import EngineProof, Receipt
from vime_core.observe.runfolder import RunFolder

NOW = datetime.datetime(2026, 3, 4, 5, 6, 7)


def make(tmp_path, template="{name}-{time}", name="run"):
    return RunFolder.create(str(tmp_path / template), name, NOW)


def test_create_fills_in_name_and_time_and_makes_the_shape(tmp_path):
    folder = make(tmp_path)
    assert folder.path == tmp_path / "run-20260304-050607"
    assert sorted(p.name for p in folder.path.iterdir()) == ["checkpoints", "logs", "samples", "tensorboard"]


def test_create_never_takes_a_folder_that_is_in_use(tmp_path):
    make(tmp_path).append_metrics(0, {"train/loss": 1.0})
    with pytest.raises(ConfigError, match=r"run-20260304-050607 is already in use; choose another --run-dir or --name"):
        make(tmp_path)
    assert RunFolder.open(tmp_path / "run-20260304-050607").series("train/loss") == [(0, 1.0)]


def test_create_leaves_a_folder_with_foreign_files_alone(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="in use"):
        make(tmp_path, "precious")
    assert [p.name for p in (tmp_path / "precious").iterdir()] == ["thesis.tex"]


def test_create_takes_an_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    assert make(tmp_path, "empty").checkpoints.is_dir()


def test_of_runs_that_race_for_a_folder_one_wins(tmp_path):
    def attempt(_):
        try:
            return make(tmp_path, "same")
        except ConfigError:
            return None

    with ThreadPoolExecutor(8) as pool:
        winners = [folder for folder in pool.map(attempt, range(8)) if folder]
    assert len(winners) == 1


def test_a_placeholder_that_does_not_exist_is_an_error_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown placeholder \{nme\}.*\{name\}"):
        make(tmp_path, "{nme}")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_template_says_so():
    with pytest.raises(ConfigError, match="--run-dir is empty"):
        RunFolder.create(" ", "run", NOW)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be part of a path"):
        make(tmp_path, name=name)


def test_a_folder_that_cannot_be_made_is_a_configuration_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made: Not a directory"):
        make(tmp_path, "file/run")


def test_a_stage_has_a_folder_of_the_same_shape_even_below_braces(tmp_path):
    folder = make(tmp_path, "{{name}}")
    stage = folder.stage("warmup")
    assert stage.path == tmp_path / "{name}" / "warmup"
    with pytest.raises(ConfigError, match="in use"):
        folder.stage("warmup")


def test_open_refuses_what_is_not_a_run(tmp_path):
    with pytest.raises(DataError, match="is not the folder of a run"):
        RunFolder.open(tmp_path)


def test_metrics_come_back_in_order(tmp_path):
    folder = make(tmp_path)
    assert folder.read_metrics() == []
    assert folder.append_metrics(0, {"train/loss": 0.5, "rollout/raw_reward": np.float32(0.25)}) == 0
    assert folder.append_metrics(1, {"train/loss": np.float64(0.125)}) == 0
    assert folder.read_metrics() == [
        {"step": 0, "train/loss": 0.5, "rollout/raw_reward": 0.25},
        {"step": 1, "train/loss": 0.125},
    ]
    assert folder.series("train/loss") == [(0, 0.5), (1, 0.125)]


def test_what_is_not_finite_is_null_and_counted(tmp_path):
    folder = make(tmp_path)
    metrics = {"a": math.nan, "b": math.inf, "c": np.float32("-inf"), "d": 1.0, "e": None, "f": 3}
    assert folder.append_metrics(4, metrics) == 3
    text = folder.metrics.read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert folder.read_metrics() == [
        {"step": 4, "a": None, "b": None, "c": None, "d": 1.0, "e": None, "f": 3, "non_finite": 3}
    ]


def test_half_a_last_line_is_left_out_and_a_broken_one_is_an_error(tmp_path):
    folder = make(tmp_path)
    folder.append_metrics(0, {"a": 1})
    with open(folder.metrics, "a") as file:
        file.write('{"step": 1, "a"')
    assert folder.read_metrics() == [{"step": 0, "a": 1}]
    with open(folder.metrics, "a") as file:
        file.write("\n")
    with pytest.raises(DataError, match=r"metrics.jsonl:2: not a JSON line"):
        folder.read_metrics()


def test_a_killed_process_loses_nothing_that_it_wrote(tmp_path):
    folder = make(tmp_path)
    code = (
        "import sys; from vime_core.observe.runfolder import RunFolder\n"
        "f = RunFolder.open(sys.argv[1])\n"
        "for i in range(100): f.append_metrics(i, {'a': i})\n"
        "print('written', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        os.kill(child.pid, signal.SIGKILL)
    assert [row["step"] for row in folder.read_metrics()] == list(range(100))


def test_samples_of_a_step_are_strict_json(tmp_path):
    folder = make(tmp_path)
    sample = Sample(0, 1, 2, 0, "1 + 1 = ", [5, 6])
    sample.append_model([7], [-0.5], [3])
    sample.append_observation([8])
    sample.status, sample.reward = Status.COMPLETED, Score(1.0, {"format": 1.0})
    path = folder.write_samples(12, [sample, {"text": "früh", "ids": np.array([1, 2])}])
    assert path == folder.path / "samples" / "step_000012.jsonl"
    first, second = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert first["logprobs"] == [-0.5, None]
    assert first["status"] == "completed"
    assert first["reward"] == {"value": 1.0, "parts": {"format": 1.0}}
    assert second == {"text": "früh", "ids": [1, 2]}


def test_a_file_that_fails_to_be_written_leaves_the_old_one_and_no_rest(tmp_path):
    folder = make(tmp_path)
    folder.write_text("config.toml", "old")
    with pytest.raises(UnicodeEncodeError):
        folder.write_text("config.toml", "new \udcff")
    assert folder.config.read_text() == "old"
    assert [p.name for p in folder.path.iterdir() if p.is_file()] == ["config.toml"]


def test_samples_without_a_json_form_name_the_type(tmp_path):
    folder = make(tmp_path)
    with pytest.raises(TypeError, match="object has no JSON form"):
        folder.write_samples(0, [{"x": object()}])
    assert list(folder.samples.iterdir()) == []


def test_receipts_are_kept_whole(tmp_path):
    folder = make(tmp_path)
    proof = EngineProof("engine-0", 3, "abc", 11, 2e-7)
    folder.append_receipt(Receipt(3, "abc", 11, 2048, 0.5, (proof,), {"send": 0.25}))
    assert folder.read_receipts() == [
        {
            "version": 3,
            "digest": "abc",
            "names": 11,
            "nbytes": 2048,
            "seconds": 0.5,
            "engines": [{"engine": "engine-0", "version": 3, "digest": "abc", "names": 11, "canary_gap": 2e-7}],
            "phases": {"send": 0.25},
        }
    ]
