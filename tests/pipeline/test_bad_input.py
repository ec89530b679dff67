"""What is wrong with a command line or its data is said in seconds, in one message, before any process is started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Done, flags, vime

Options = Callable[..., dict[str, Any]]


def refused(folder: Path, *arguments: str) -> list[str]:
    """The complaints of a command that must end before it starts anything. Ray would leave its session folder."""
    done = vime(folder, "train", *arguments, RAY_TMPDIR=str(folder / "ray"))
    assert_refused(done, folder)
    return done.complaints


def assert_refused(done: Done, folder: Path) -> None:
    assert done.code == 2, done.text
    first, *more = done.out.splitlines() or [""]  # said before anything is looked at, and not where arguments are wrong
    assert not first or first.endswith(": checking the configuration, then starting")
    assert not more
    assert "Traceback" not in done.err
    assert not done.left
    assert done.seconds < 20
    assert not (folder / "run").exists()
    assert not (folder / "ray").exists()


def test_everything_wrong_with_the_configuration_is_said_at_once(tmp_path: Path, grpo: Options) -> None:
    options = grpo(
        prompt_data="train.jsonl",
        reward=None,
        n_samples_per_prompt=1,
        global_batch_size=3,
        eps_clip_c=3.0,
        algorithm_options='{"epsilon": 1}',
        save_interval=1,
        rollout_max_response_len=64,
    )
    complaints = refused(tmp_path, *flags(**options))
    for expected in (
        "--prompt-data train.jsonl (flag --prompt-data): there is no such file",
        "--reward is missing",
        "leaves nothing to compare (every advantage is 0); give 2 or more",
        "4 samples a step",
        "--global-batch-size 3 (flag --global-batch-size)",
        "--algorithm-options epsilon (flag --algorithm-options) is not read by grpo",
        "--save-interval 1 (flag --save-interval) has nowhere to save",
        "do not fit into --vllm-max-model-len = 64",
    ):
        assert sum(expected in line for line in complaints) == 1, (expected, complaints)


def test_unknown_flags_are_said_at_once_with_the_nearest_name(tmp_path: Path, grpo: Options) -> None:
    complaints = refused(tmp_path, *flags(**grpo(), rollout_batchsize=3, vllm_max_modl_len=3))
    assert "unknown flag --rollout-batchsize; did you mean --rollout-batch-size?" in complaints
    assert any("--vllm-max-modl-len" in line and "--vllm-max-model-len" in line for line in complaints)


def test_unknown_model_type(tmp_path: Path, grpo: Options) -> None:
    model = Path(shutil.copytree(grpo()["hf_checkpoint"], tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "qwen33"}))
    (complaint,) = refused(tmp_path, *flags(**grpo(hf_checkpoint=model)))
    assert "is of model type 'qwen33', which the trainer cannot load; did you mean qwen3?" in complaint


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['{"prompt": "1", "answer": "1"', ""], "rows.jsonl:1: not JSON:"),
        (
            ['{"prompt": "1", "answer": "1"}', '{"question": "1", "answer": "1"}'],
            "rows.jsonl:2: key 'prompt' is missing",
        ),
        (['{"prompt": "1", "answer": null}'], "rows.jsonl:1: key 'answer' is null; --label-key names another"),
        ([], "rows.jsonl: 0 usable rows"),
        (
            ['{"prompt": "1", "answer": "1"}'] * 3,
            "3 usable rows, but a step takes 4 prompts: lower --rollout-batch-size",
        ),
        (
            ['{"prompt": "1", "answer": "1"}', json.dumps({"prompt": "12+34=" * 11, "answer": "1"})],
            "rows.jsonl:2: key 'prompt': a prompt of 66 tokens leaves no room for a response in a context of 64",
        ),
    ],
    ids=["not-json", "no-prompt", "null-label", "empty", "few", "long"],
)
def test_bad_rows(tmp_path: Path, grpo: Options, lines: list[str], expected: str) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(lines))
    (complaint,) = refused(tmp_path, *flags(**grpo(prompt_data=rows)))
    assert expected in complaint


def test_bad_row_of_an_evaluation(tmp_path: Path, grpo: Options) -> None:
    rows = tmp_path / "held.jsonl"
    rows.write_text('{"prompt": "1", "answer": "1"}\n{"prompt": "1"}\n')
    (complaint,) = refused(tmp_path, *flags(**grpo(eval_prompt_data=["held", rows], eval_interval=1)))
    assert "held.jsonl:2: key 'answer' is missing (keys: prompt)" in complaint


def test_a_reward_that_is_not_there(tmp_path: Path, grpo: Options) -> None:
    (complaint,) = refused(tmp_path, *flags(**grpo(reward="my_reward.py:scor")))
    assert "my_reward.py" in complaint
    assert "scor" in complaint


def test_a_cluster_that_is_not_there(tmp_path: Path, grpo: Options) -> None:
    """The run folder is there already; nothing else is."""
    done = vime(tmp_path, "train", *flags(**grpo(ray_address="127.0.0.1:1")), RAY_TMPDIR=str(tmp_path / "ray"))
    assert done.code == 2, done.text
    (complaint,) = done.complaints
    assert complaint.startswith("--ray-address 127.0.0.1:1: no Ray cluster can be joined there: ")
    assert "Traceback" not in done.err
    assert not (tmp_path / "ray").exists()


@pytest.mark.parametrize("arguments", [["--show-config"], ["--help"]])
def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path: Path, arguments: list[str]) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
    command = [sys.executable, "-m", "vime_cli.main", "train", str(recipe), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141
