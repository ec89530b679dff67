"""A whole run from the command line, at the size of a test: everything that it must leave behind, and its numbers."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.repeats import assert_repeats
from tests.support.runs import Done, json_lines, step_rows, vime
from vime_core.config.resolution import resolve
from vime_core.observe.catalog import unknown
from vime_core.training import checkpoint

RECIPE = """
name = "small"
run_dir = "run"
prepare = "vime_cli.quickstart.addition:prepare"
prompt_data = ["{prepared.train}"]
input_key = "prompt"
label_key = "answer"
rollout_shuffle = true
rollout_max_response_len = 6
rollout_seeded = true
eval_prompt_data = ["addition", "{prepared.heldout}@[:32]"]
eval_temperature = 0.0
eval_reward = "exact"
use_dynamic_batch_size = true
max_tokens_per_gpu = 4096
vllm_dtype = "float32"
vllm_max_model_len = 64
vllm_max_num_seqs = 64

[[stage]]
name = "warmup"
hf_checkpoint = "{prepared.model}"
rollout_function = "sft"
loss_type = "sft_loss"
rollout_batch_size = 64
num_rollout = 30
lr = 2e-3
save_hf = "{run}/hf"

[[stage]]
name = "grpo"
hf_checkpoint = "{stages.warmup.hf}"
reward = "my_reward:score"
rollout_batch_size = 16
n_samples_per_prompt = 4
num_steps_per_rollout = 2
num_rollout = 4
lr = 1e-3
eval_interval = 4
target = "eval/addition >= 1.0"
save = "{run}/checkpoints"
save_interval = 2
save_hf = "{run}/hf"
"""
MY_REWARD = """
def score(sample):
    digits = [c for c in sample.response if c.isdigit()]
    return sum(c in "01234" for c in digits) / 8
"""


@dataclass(frozen=True)
class Finished:
    """What the one run of this file left behind."""

    done: Done
    folder: Path

    @property
    def grpo(self) -> Path:
        return self.folder / "grpo"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Supervised steps, then GRPO with the user's own reward; its target is out of reach."""
    place = tmp_path_factory.mktemp("whole")
    (place / "small.toml").write_text(RECIPE)
    (place / "my_reward.py").write_text(MY_REWARD)
    done = vime(place, "train", "small.toml", "--plugin", "./my_reward.py")
    return Finished(done, place / "run")


@pytest.mark.e2e
def test_a_missed_target_is_the_exit_code_and_the_last_word(finished: Finished) -> None:
    done = finished.done
    assert done.code == 1, done.text
    assert "Traceback" not in done.err
    assert done.complaints == [f"target missed: eval/addition >= 1.0; see {finished.grpo / 'report.txt'}"]
    report = (finished.grpo / "report.txt").read_text()
    assert done.out.endswith(report)
    assert "(eval/addition >= 1.0: MISSED)" in report
    assert "4 in " in report


@pytest.mark.e2e
def test_nothing_is_left_running(finished: Finished) -> None:
    assert finished.done.left == {}
    assert finished.done.litter == []


@pytest.mark.e2e
@pytest.mark.parametrize("stage", ["warmup", "grpo"])
def test_the_run_folder_is_complete(finished: Finished, stage: str) -> None:
    folder = finished.folder / stage
    again = resolve([str(folder / "config.toml")], {}, {}).stages[0].config
    assert again.run.name == "small"
    assert again.rollout.num_rollout == len(step_rows(folder))
    assert tomllib.loads((folder / "config.toml").read_text())["plugin"] == ["./my_reward.py"]
    assert "my_reward" in (folder / "plugins.lock.json").read_text()
    assert list((folder / "tensorboard").glob("events.*"))
    assert (folder / "report.txt").read_text().startswith(f"vime: {stage}: finished\n")
    for row in step_rows(folder):
        samples = json_lines(folder / "samples" / f"step_{row['step']:06d}.jsonl")
        assert len(samples) == row["train/samples"] == 64


@pytest.mark.e2e
def test_every_metric_is_in_the_catalogue(finished: Finished) -> None:
    rows = json_lines(finished.folder / "warmup" / "metrics.jsonl") + json_lines(finished.grpo / "metrics.jsonl")
    assert unknown(name for row in rows for name in row if name != "step") == []
    assert not any("non_finite" in row for row in rows)


@pytest.mark.e2e
def test_the_model_learns_what_it_is_shown(finished: Finished) -> None:
    losses = [row["train/loss"] for row in step_rows(finished.folder / "warmup")]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.e2e
def test_trainer_and_sampler_mean_the_same_model(finished: Finished) -> None:
    rows = step_rows(finished.grpo)
    assert [row["rollout/step"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        assert 0 < row["train/train_rollout_logprob_abs_diff"] <= 1e-5
        assert row["train/missing_rollout_logprobs"] == 0
        assert row["rollout/staleness/max"] == 0
        assert row["train/grad_norm"] > 0
    assert len({row["rollout/raw_reward"] for row in rows}) > 1


@pytest.mark.e2e
def test_every_sync_left_a_receipt(finished: Finished) -> None:
    receipts = json_lines(finished.grpo / "receipts.jsonl")
    assert [receipt["version"] for receipt in receipts] == [0, 1, 2, 3, 4]
    assert len({receipt["digest"] for receipt in receipts}) == 5
    for receipt in receipts:
        (engine,) = receipt["engines"]
        assert (engine["digest"], engine["names"]) == (receipt["digest"], receipt["names"])
        assert 0 <= engine["canary_gap"] <= 1e-4


@pytest.mark.e2e
def test_the_ledger_adds_up(finished: Finished) -> None:
    for row in step_rows(finished.grpo):
        fates = {name: value for name, value in row.items() if name.startswith("rollout/groups/")}
        assert sum(fates.values()) == fates["rollout/groups/trained"] == 16 * (row["step"] + 1)


@pytest.mark.e2e
def test_samples_say_what_was_trained_on(finished: Finished) -> None:
    for step in range(4):
        samples = json_lines(finished.grpo / "samples" / f"step_{step:06d}.jsonl")
        assert {sample["outcome"] for sample in samples} == {"trained"}
        for sample in samples:
            n = len(sample["response_tokens"])
            assert n > 0
            assert len(sample["logprobs"]) == len(sample["versions"]) == len(sample["loss_mask"]) == n
            assert set(sample["versions"]) == {step}


@pytest.mark.e2e
def test_evaluations_before_and_after(finished: Finished) -> None:
    rows = [row for row in json_lines(finished.grpo / "metrics.jsonl") if "eval/step" in row]
    assert [row["eval/step"] for row in rows] == [0, 4]
    assert all(0 <= row["eval/addition"] < 1 for row in rows)


@pytest.mark.e2e
def test_checkpoints_are_complete(finished: Finished) -> None:
    root = finished.grpo / "checkpoints"
    assert checkpoint.steps(root) == [2, 4]
    assert sorted(path.name for path in root.iterdir()) == ["step_00000002", "step_00000004"]
    assert checkpoint.read_meta(checkpoint.find(str(root), None))["step"] == 4


@pytest.mark.e2e
def test_its_second_half_can_be_repeated_to_the_last_bit(finished: Finished) -> None:
    where = ("--run-dir", "run/again", "--load", "run/grpo/checkpoints", "--ckpt-step", 2, "--save", "run/again/saved")
    done = vime(finished.folder.parent, "train", "run/grpo/config.toml", *where)
    assert done.code == 1, done.text  # the target
    assert_repeats(finished.folder / "again", finished.grpo, first=2)


@pytest.mark.e2e
def test_the_export_is_the_model_that_was_trained(finished: Finished) -> None:
    """The log-probs that the engine gave its last samples are those of the weights before the last step; the export
    has had one step more, so it is near them, and differs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished.grpo / "hf"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    first = json_lines(finished.grpo / "samples" / "step_000000.jsonl")[0]
    assert AutoTokenizer.from_pretrained(folder)(first["prompt"])["input_ids"] == first["prompt_tokens"]
    before = AutoModelForCausalLM.from_pretrained(finished.folder / "warmup" / "hf", dtype=torch.float32)
    ids = torch.tensor([first["prompt_tokens"] + first["response_tokens"]])

    def gap(of: torch.nn.Module) -> float:
        with torch.no_grad():
            rows = torch.log_softmax(of(ids).logits[0, :-1], -1)
        start = len(first["prompt_tokens"]) - 1
        mine = rows.gather(1, ids[0, 1:, None])[start:, 0]
        return float((mine - torch.tensor(first["logprobs"])).abs().max())

    assert gap(before) <= 1e-5
    assert gap(model) > 1e-3
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
