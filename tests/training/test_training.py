"""Training in several processes equals training in one: losses, gradient norms and the model afterwards."""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import result_of

SUPPORT = Path(__file__).parents[1] / "support"
RELATIVE = 1e-5
DYNAMIC = {"use_dynamic_batch_size": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("support_models", SUPPORT / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path_factory.mktemp("models")
    made = {kind: str(module.build_model(root / kind, kind)) for kind in ("qwen3", "qwen3_moe")}
    return made | {"deep": str(module.build_model(root / "deep", "qwen3", num_hidden_layers=4))}


@lru_cache
def train(folder: str, sections: str, world: int, steps: int = 3) -> dict[str, Any]:
    """Metrics of each step and log-probs of a probe afterwards, from real processes."""
    trained: dict[str, Any] = result_of("tests.support.train_ranks", folder, sections, str(world), str(steps))
    return trained


def assert_same(got: dict[str, Any], want: dict[str, Any], relative: float = RELATIVE) -> None:
    for ours, theirs in zip(got["rows"], want["rows"], strict=True):
        for name in ("train/loss", "train/grad_norm", "train/train_rollout_logprob_abs_diff", "train/trainable_tokens"):
            # a loss whose advantages cancel is rounding, some 1e-8
            assert ours[name] == pytest.approx(theirs[name], rel=relative, abs=1e-7 if name == "train/loss" else 0), (
                name
            )
    assert got["score"] == pytest.approx(want["score"], rel=relative)


def megatron(**values: Any) -> str:
    return json.dumps({"megatron": values})


def test_one_optimizer_step_has_a_ratio_of_exactly_one(models: dict[str, str]) -> None:
    rows = train(models["qwen3"], "{}", 1)["rows"]
    assert [row["train/ppo_kl"] for row in rows] == [0.0] * 3
    assert [row["train/ois"] for row in rows] == [1.0] * 3


def test_training_changes_the_model(models: dict[str, str]) -> None:
    before, after = train(models["qwen3"], "{}", 1, 1), train(models["qwen3"], "{}", 1)
    assert before["rows"][0]["train/grad_norm"] > 0
    assert before["score"] != pytest.approx(after["score"], rel=1e-3)


def test_packing_changes_nothing(models: dict[str, str]) -> None:
    small = json.dumps({"train": {**DYNAMIC, "max_tokens_per_gpu": 50}})
    got, want = train(models["qwen3"], small, 1), train(models["qwen3"], "{}", 1)
    assert got["rows"][0]["train/micro_batches"] > want["rows"][0]["train/micro_batches"]
    assert_same(got, want)


def test_data_parallel_with_the_distributed_optimizer(models: dict[str, str]) -> None:
    got = train(models["qwen3"], megatron(use_distributed_optimizer=True), 2)
    assert_same(got, train(models["qwen3"], "{}", 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"tensor_model_parallel_size": 2},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True},
        {"pipeline_model_parallel_size": 2},
        {"context_parallel_size": 2},
    ],
    ids=["dp2", "tp2", "tp2-sp", "pp2", "cp2"],
)
def test_two_ranks_equal_one(models: dict[str, str], layout: dict[str, Any]) -> None:
    assert_same(train(models["qwen3"], megatron(**layout), 2), train(models["qwen3"], "{}", 1))


@pytest.mark.slow
def test_overlapped_communication_changes_nothing(models: dict[str, str]) -> None:
    """Several micro-batches, whose gradients are reduced once, and a reference that is swapped in after each update."""
    shared = {
        "megatron": {"use_distributed_optimizer": True},
        "algorithm": {"use_kl_loss": True},
        "train": {**DYNAMIC, "max_tokens_per_gpu": 64},
    }
    overlap = {"megatron_extra": {"overlap_grad_reduce": True, "overlap_param_gather": True}}
    got, want = (train(models["qwen3"], json.dumps(sections), 2) for sections in (shared | overlap, shared))
    assert_same(got, want)
    assert [row["train/kl_loss"] for row in got["rows"]] == [row["train/kl_loss"] for row in want["rows"]]


@pytest.mark.slow
def test_experts_over_two_ranks_equal_one(models: dict[str, str]) -> None:
    got = train(models["qwen3_moe"], megatron(expert_model_parallel_size=2), 2)
    assert_same(got, train(models["qwen3_moe"], "{}", 1))


@pytest.mark.slow
def test_several_optimizer_steps_do_not_depend_on_the_ranks(models: dict[str, str]) -> None:
    two = {"train": {**DYNAMIC, "max_tokens_per_gpu": 64, "num_steps_per_rollout": 2}}
    got, want = train(models["qwen3"], json.dumps(two), 2), train(models["qwen3"], json.dumps(two), 1)
    assert_same(got, want, relative=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [{"virtual_pipeline_model_parallel_size": 2}, {"num_layers_in_first_pipeline_stage": 1}],
    ids=["virtual", "uneven"],
)
def test_pipelines_of_another_cut_train_as_one_rank_does(models: dict[str, str], extra: dict[str, int]) -> None:
    sections = json.dumps({"megatron": {"pipeline_model_parallel_size": 2}, "megatron_extra": extra})
    assert_same(train(models["deep"], sections, 2), train(models["deep"], "{}", 1))
