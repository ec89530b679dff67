"""On-policy distillation from the command line: a student that knows nothing, and a teacher in an engine of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vime_cli.quickstart.addition import build_model

from tests.support.runs import Run, flags, json_lines, step_rows, vime
from vime_core.config.sections import Config
from vime_core.devices.cpu import CpuBackend
from vime_core.observe.catalog import unknown
from vime_core.runtime.ray_cluster import demand

Options = Callable[..., dict[str, Any]]


def test_the_cluster_must_have_room_for_the_teacher() -> None:
    config = Config().replace("cluster", rollout_num_gpus=4, rollout_num_gpus_per_engine=2)
    assert demand(config, CpuBackend()) == {"CPU": 1 + 4 + 1}
    distilling = config.replace("algorithm", use_opd=True, opd_type="engine")
    assert demand(distilling, CpuBackend()) == {"CPU": 1 + 4 + 2 + 1}
    assert demand(distilling.replace("algorithm", opd_type="megatron"), CpuBackend()) == {"CPU": 1 + 4 + 1}
    assert demand(distilling.replace("train", loss_type="sft_loss"), CpuBackend()) == {"CPU": 1 + 4 + 1}


PURE = """
name = "distil"
run_dir = "run"
prepare = "vime_cli.quickstart.addition:prepare"
prompt_data = ["{prepared.train}"]
input_key = "prompt"
label_key = "answer"
rollout_shuffle = true
rollout_max_response_len = 6
rollout_seeded = true
use_dynamic_batch_size = true
max_tokens_per_gpu = 4096
vllm_dtype = "float32"
vllm_max_model_len = 64
vllm_max_num_seqs = 64
hf_checkpoint = "{prepared.model}"

[[stage]]
name = "teach"
rollout_function = "sft"
loss_type = "sft_loss"
rollout_batch_size = 64
num_rollout = 60
lr = 2e-3
save_hf = "{run}/hf"

[[stage]]
name = "distil"
advantage_estimator = "opd"
opd_type = "engine"
opd_teacher_model = "{stages.teach.hf}"
rollout_batch_size = 64
n_samples_per_prompt = 4
num_rollout = 24
lr = 2e-3
"""


@pytest.mark.slow
def test_a_student_comes_near_its_teacher_without_a_reward(tmp_path: Path) -> None:
    (tmp_path / "distil.toml").write_text(PURE)
    done = vime(tmp_path, "train", "distil.toml")
    assert done.code == 0, done.text
    assert done.left == {}
    folder = tmp_path / "run" / "distil"
    rows = step_rows(folder)
    gaps = [row["train/opd_reverse_kl"] for row in rows]
    assert gaps[0] > 1
    assert sum(gaps[-3:]) / 3 < 0.6 * gaps[0]
    assert all(row["perf/teacher_time"] > 0 for row in rows)
    assert not any("rollout/raw_reward" in row for row in rows)
    assert unknown(name for row in rows for name in row if name != "step") == []
    assert (folder / "logs" / "teacher.log").stat().st_size > 0
    assert_hugging_faces(folder, tmp_path / "run" / "teach" / "hf", 1.0)


@pytest.mark.slow
def test_a_task_reward_and_a_teacher_at_another_temperature(tmp_path: Path, grpo: Options) -> None:
    build_model(tmp_path / "teacher", seed=8)
    teacher = {"use_opd": True, "opd_type": "engine", "opd_teacher_model": "teacher"}
    done = vime(tmp_path, "train", *flags(**grpo(rollout_temperature=0.7, **teacher)))
    assert done.code == 0, done.text
    assert done.left == {}
    for row in step_rows(tmp_path / "run"):
        assert row["train/train_rollout_logprob_abs_diff"] <= 1e-5
        assert "train/opd_reverse_kl" in row
        assert "rollout/raw_reward" in row
    assert_hugging_faces(tmp_path / "run", tmp_path / "teacher", 0.7)
    receipts = json_lines(tmp_path / "run" / "receipts.jsonl")
    assert [len(receipt["engines"]) for receipt in receipts] == [1, 1, 1]


def assert_hugging_faces(run: Path, teacher: Path, temperature: float) -> None:
    """The log-probs of the run's last samples, against a forward of the teacher."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    for sample in json_lines(sorted((run / "samples").iterdir())[-1]):
        prompt, response = sample["prompt_tokens"], sample["response_tokens"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        right = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(response)[:, None])[:, 0]
        assert sample["teacher_logp"] == pytest.approx(right.tolist(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_teacher_ends_with_the_run(tmp_path: Path, grpo: Options, number: signal.Signals) -> None:
    build_model(tmp_path / "teacher", seed=8)
    teacher = {"use_opd": True, "opd_type": "engine", "opd_teacher_model": "teacher"}
    with Run(tmp_path, "train", *flags(**grpo(num_rollout=10000, save_samples=False, **teacher))) as run:
        run.wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), "a first step")
        assert any("TeacherActor" in title for title in run.processes().values())
        run.signal(number)
        run.wait_until_gone()
        assert run.finish().code == (-number if number == signal.SIGKILL else 128 + number)


@pytest.mark.slow
def test_a_teacher_of_another_vocabulary_is_refused_before_anything_starts(tmp_path: Path, grpo: Options) -> None:
    build_model(tmp_path / "teacher", seed=8)
    file = tmp_path / "teacher" / "tokenizer.json"
    file.write_text(file.read_text().replace('"7"', '"~"'))
    teacher = {"use_opd": True, "opd_type": "engine", "opd_teacher_model": "teacher"}
    done = vime(tmp_path, "train", *flags(**grpo(**teacher)))
    assert done.code == 2, done.text
    assert "--opd-teacher-model teacher reads other token ids than --hf-checkpoint" in done.err
    assert "the teacher has '~' there" in done.err
    assert not (tmp_path / "run").exists()
