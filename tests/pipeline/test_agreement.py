"""Trainer and engine mean the same model, whatever the temperature, type, model or layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import build_model
from tests.support.runs import flags, json_lines, step_rows, vime

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow

GAP = "train/train_rollout_logprob_abs_diff"
#: writes down what the engine answered; greedy evaluations go through it
NOTES = """
import json

def score(sample):
    with open("notes.jsonl", "a") as file:
        answer = {"response": list(sample.response_tokens), "versions": list(sample.versions)}
        file.write(json.dumps({"prompt": sample.prompt_tokens} | answer) + chr(10))
    return 0.0
"""
LAYOUTS: dict[str, dict[str, Any]] = {
    "temperature": {"rollout_temperature": 0.7},
    "two-engines": {"rollout_num_gpus": 2},
    "tensor-parallel": {"actor_num_gpus_per_node": 2, "tensor_model_parallel_size": 2},
    "data-parallel": {"actor_num_gpus_per_node": 2},
}


def run(folder: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the steps of a run that ends well; its syncs all committed."""
    done = vime(folder, "train", *flags(**options))
    assert done.code == 0, done.text
    assert done.left == {}
    receipts = json_lines(folder / "run" / "receipts.jsonl")
    assert [receipt["version"] for receipt in receipts] == list(range(options["num_rollout"] + 1))
    rows = step_rows(folder / "run")
    assert len(rows) == options["num_rollout"]
    return rows


@pytest.mark.parametrize("name", LAYOUTS)
def test_log_probs_agree(tmp_path: Path, grpo: Options, name: str) -> None:
    for row in run(tmp_path, grpo(num_steps_per_rollout=2, **LAYOUTS[name])):
        assert 0 < row[GAP] <= 1e-5
    for receipt in json_lines(tmp_path / "run" / "receipts.jsonl"):
        assert len(receipt["engines"]) == LAYOUTS[name].get("rollout_num_gpus", 1)
        assert all(0 <= engine["canary_gap"] <= 1e-4 for engine in receipt["engines"])


def test_log_probs_agree_with_experts(tmp_path: Path, grpo: Options) -> None:
    model = build_model(tmp_path / "moe", "qwen3_moe")
    for row in run(tmp_path, grpo(hf_checkpoint=model)):
        assert 0 < row[GAP] <= 1e-5


def test_log_probs_agree_in_bfloat16(tmp_path: Path, grpo: Options) -> None:
    """After supervised steps, so that the distribution is not flat."""
    shared = {"bf16": True, "vllm_dtype": "bfloat16"}
    warm = grpo(run_dir="warm", rollout_function="sft", loss_type="sft_loss", n_samples_per_prompt=1, reward=None)
    warm |= {"rollout_batch_size": 64, "num_rollout": 40, "lr": 2e-3, "save_hf": "warm/hf", **shared}
    done = vime(tmp_path, "train", *flags(**warm))
    assert done.code == 0, done.text
    for row in run(tmp_path, grpo(hf_checkpoint="warm/hf", lr=1e-4, **shared)):
        assert 0 < row[GAP] <= 0.01


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_greedy_answers_after_a_sync_are_those_of_the_trainer(tmp_path: Path, grpo: Options, kind: str) -> None:
    """The engine after the last sync against the trainer's export in Hugging Face, token by token."""
    import torch
    from transformers import AutoModelForCausalLM

    (tmp_path / "notes.py").write_text(NOTES)
    options = grpo(
        hf_checkpoint=build_model(tmp_path / "model", kind),
        eval_interval=2,
        eval_prompt_data=["held", grpo()["prompt_data"] + "@[:24]"],
        eval_temperature=0.0,
        eval_reward="notes.py:score",
        save_hf="run/hf",
        lr=3e-3,
    )
    run(tmp_path, options)
    notes = [json.loads(line) for line in (tmp_path / "notes.jsonl").read_text().splitlines()]
    answers = {}
    for version, folder in ((0, tmp_path / "model"), (2, tmp_path / "run" / "hf")):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        mine = [note for note in notes if set(note["versions"]) == {version}]
        assert len(mine) == 24
        for note in mine:
            ids = torch.tensor([note["prompt"]])
            with torch.no_grad():
                made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
            assert made[0, ids.shape[1] :].tolist() == note["response"]
        answers[version] = {tuple(note["prompt"]): note["response"] for note in mine}
    assert answers[0] != answers[2]  # the weights moved far enough for the comparison to mean something
