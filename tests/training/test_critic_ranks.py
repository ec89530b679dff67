"""A critic over several processes equals one in one: values, losses, gradient norms, and the values afterwards."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import build_model
from tests.support.ranks import result_of

ROOT = Path(__file__).parents[2]
RELATIVE = 1e-5
MEASURES = ("value_loss", "value_clipfrac", "values/mean", "explained_variance", "critic-grad_norm")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders with a head that is not zero, so that the first gradients reach the whole body."""
    root = tmp_path_factory.mktemp("critics")
    kinds = {"qwen3": ("qwen3", False), "tied": ("qwen3", True), "qwen3_moe": ("qwen3_moe", False)}
    return {name: str(with_head(build_model(root / name, kind, tied=tied))) for name, (kind, tied) in kinds.items()}


def with_head(folder: Path) -> Path:
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    head = torch.randn(1, 64, generator=torch.Generator().manual_seed(7)) * 0.1
    save_file({**load_file(file), "score.weight": head}, file, metadata={"format": "pt"})
    return folder


@lru_cache
def train(folder: str, sections: str, world: int, samples: int = 12) -> dict[str, Any]:
    """Three steps in real processes; see the module that they run."""
    trained: dict[str, Any] = result_of("tests.support.critic_ranks", folder, sections, str(world), "3", str(samples))
    return trained


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got["before"] == pytest.approx(want["before"], rel=RELATIVE, abs=RELATIVE)
    for ours, theirs in zip(got["rows"], want["rows"], strict=True):
        for name in MEASURES:
            assert ours[f"train/{name}"] == pytest.approx(theirs[f"train/{name}"], rel=RELATIVE, abs=1e-7), name
    assert got["after"] == pytest.approx(want["after"], rel=RELATIVE, abs=RELATIVE)
    assert max(abs(a - b) for a, b in zip(got["after"], got["before"], strict=True)) > 0.1


def megatron(**values: Any) -> str:
    return json.dumps({"megatron": values})


def test_packing_changes_nothing(models: dict[str, str]) -> None:
    small = json.dumps({"train": {"max_tokens_per_gpu": 48}})
    assert_same(train(models["qwen3"], small, 1), train(models["qwen3"], "{}", 1))


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"use_distributed_optimizer": True},
        {"tensor_model_parallel_size": 2},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True},
        {"pipeline_model_parallel_size": 2},
        {"context_parallel_size": 2},
    ],
    ids=["dp2", "dp2-distopt", "tp2", "tp2-sp", "pp2", "cp2"],
)
def test_two_ranks_equal_one(models: dict[str, str], layout: dict[str, Any]) -> None:
    assert_same(train(models["qwen3"], megatron(**layout), 2), train(models["qwen3"], "{}", 1))


def test_an_embedding_that_was_tied_is_the_critics_own(models: dict[str, str]) -> None:
    """The first and the last stage hold no copies of one weight whose gradients would have to be added."""
    two = megatron(pipeline_model_parallel_size=2)
    assert_same(train(models["tied"], two, 2), train(models["tied"], "{}", 1))


def test_experts_over_two_ranks_equal_one(models: dict[str, str]) -> None:
    two = megatron(expert_model_parallel_size=2)
    assert_same(train(models["qwen3_moe"], two, 2), train(models["qwen3_moe"], "{}", 1))


def test_a_rank_without_tokens(models: dict[str, str]) -> None:
    """One sample for two data-parallel ranks."""
    assert_same(train(models["qwen3"], "{}", 2, samples=1), train(models["qwen3"], "{}", 1, samples=1))


def test_four_ranks_equal_one(models: dict[str, str]) -> None:
    four = megatron(tensor_model_parallel_size=2, sequence_parallel=True, pipeline_model_parallel_size=2)
    assert_same(train(models["tied"], four, 4), train(models["tied"], "{}", 1))
