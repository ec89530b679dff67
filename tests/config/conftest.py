"""A run that breaks no rule, and short ways to vary it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vime_core.config.resolution import resolve
from vime_core.config.sections import Config

MODEL = {
    "model_type": "qwen3",
    "max_position_embeddings": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 128,
}


@pytest.fixture
def valid(tmp_path: Path) -> list[str]:
    """Flags of a run that breaks no rule, with real files."""
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(MODEL))
    for name in ("train.jsonl", "held.jsonl"):
        (tmp_path / name).write_text('{"input": "1+1", "label": "2"}\n')
    flags = f"--hf-checkpoint {checkpoint} --prompt-data {tmp_path}/train.jsonl --rollout-batch-size 4 "
    flags += "--n-samples-per-prompt 8 --num-rollout 2 --rollout-max-response-len 16 --reward math "
    return flags.split()


@pytest.fixture
def config(valid: list[str]) -> Callable[..., Config]:
    """``config("--lr", "1")``: the valid run with further flags."""

    def make(*flags: str, plugin_options: Mapping[str, type] | None = None) -> Config:
        return resolve([*valid, *flags], {}, plugin_options).stages[0].config

    return make


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[[str], str]:
    """``recipe("lr = 1")``: path of a recipe with this text."""

    def write(text: str) -> str:
        path = tmp_path / "recipe.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def model() -> dict[str, Any]:
    return dict(MODEL)
