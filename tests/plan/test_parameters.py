from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from vime_cli.plan.layout import Layout
from vime_cli.plan.parameters import rank_parameters, whole
from vime_cli.plan.placement import trainer_ranks
from vime_cli.plan.shape import ModelShape

from tests.plan.layouts import CASES, config_of
from tests.plan.shapes import SHAPES
from tests.support.ranks import result_of
from vime_core.api.errors import ConfigError


@cache
def _megatron() -> dict[str, list[dict[str, Any]]]:
    counted: dict[str, list[dict[str, Any]]] = result_of("tests.plan.counts")
    return counted


@pytest.mark.parametrize("name", CASES)
def test_a_rank_has_as_many_parameters_as_megatron_builds(name: str) -> None:
    shape, layout = ModelShape.of(SHAPES[CASES[name].shape]), Layout.of(config_of(name))
    mine = [
        rank_parameters(shape, layout, rank.pp, critic=CASES[name].critic).total
        for rank in trainer_ranks(layout, CASES[name].world)
    ]
    assert mine == [rank["parameters"] for rank in _megatron()[name]]


@pytest.mark.parametrize("name", CASES)
def test_a_rank_stands_where_megatron_puts_it(name: str) -> None:
    layout = Layout.of(config_of(name))
    assert layout.edp == _megatron()[name][0]["edp"]
    for mine, theirs in zip(trainer_ranks(layout, CASES[name].world), _megatron()[name], strict=True):
        told = {key: value for key, value in theirs.items() if key in asdict(mine)}
        assert {key: asdict(mine)[key] for key in told} == told


@pytest.mark.parametrize("kind", SHAPES)
def test_the_whole_model_is_what_its_files_hold(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    (tmp_path / "config.json").write_text(json.dumps(SHAPES[kind]))
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).save_pretrained(tmp_path / "model")
    assert whole(ModelShape.of(SHAPES[kind])) == _count(tmp_path / "model" / "model.safetensors")


def _count(file: Path) -> int:
    """Elements of all tensors, from the file's header."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def test_published_sizes() -> None:
    """Qwen3-4B and Qwen3-30B-A3B, whose cards say 4.0B and 30.5B."""
    dense = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}
    rest = {"head_dim": 128, "vocab_size": 151936}
    four = {"model_type": "qwen3", **dense, **rest, "num_key_value_heads": 8, "tie_word_embeddings": True}
    assert whole(ModelShape.of(four)) == 4_022_468_096
    sparse = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32}
    thirty = {"model_type": "qwen3_moe", **sparse, **rest, "num_key_value_heads": 4, "num_experts": 128}
    assert whole(ModelShape.of(thirty)) == 30_532_122_624


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model_type": "mamba"}, "model type 'mamba'"), ({"hidden_size": None}, "no hidden_size")],
)
def test_a_model_that_cannot_be_planned(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelShape.of({**SHAPES["qwen3"], **change})
