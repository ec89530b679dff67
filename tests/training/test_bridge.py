"""What the bridge refuses, and how exported folders are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.models import build_model
from vime_core.api.errors import ConfigError
from vime_core.config.sections import Config
from vime_core.training.models.bridge import check_division, merge_shards, read_hf_config
from vime_core.training.models.hf_files import copy_companions, write_weights
from vime_core.training.parallel import check_sizes


def _edited(tmp_path: Path, **changes: object) -> str:
    folder = build_model(tmp_path / "m", "qwen3")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return str(folder)


def test_unknown_model_type_lists_those_that_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'gpt2' is not supported: it loads: .*llama.*qwen3"):
        read_hf_config(_edited(tmp_path, model_type="gpt2"))


def test_settings_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="attention_bias = True"):
        read_hf_config(_edited(tmp_path, attention_bias=True))


def test_rope_kinds_with_a_factor_on_attention_are_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
    with pytest.raises(ConfigError, match="rope type 'yarn'"):
        read_hf_config(_edited(tmp_path, rope_parameters=rope))


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read_hf_config(str(tmp_path))


def test_layouts_that_do_not_divide_are_reported_together(tmp_path: Path) -> None:
    hf = read_hf_config(str(build_model(tmp_path / "m", "qwen3_moe")))
    config = Config().replace(
        "megatron", tensor_model_parallel_size=4, pipeline_model_parallel_size=3, expert_model_parallel_size=3
    )
    with pytest.raises(ConfigError) as caught:
        check_division(config, hf)
    assert len(caught.value.violations) == 4  # key-value heads, layers, experts, sequence parallelism
    with pytest.raises(ConfigError, match="do not divide by tensor 4 x pipeline 3"):
        check_sizes(config, 8)


def test_gated_shards_are_merged_half_by_half() -> None:
    whole = torch.arange(16).reshape(8, 2)
    gate, up = whole.chunk(2)
    shards = [torch.cat([g, u]) for g, u in zip(gate.chunk(2), up.chunk(2), strict=True)]
    assert torch.equal(merge_shards("decoder.layers.0.mlp.linear_fc1.weight", shards, 0, True), whole)
    assert torch.equal(merge_shards("decoder.layers.0.mlp.linear_fc1.weight", list(whole.chunk(2)), 0, False), whole)


def test_large_models_are_written_in_shards_with_an_index(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.full((10,), float(n)) for n in range(5)}
    write_weights(tmp_path, iter(tensors.items()), shard_bytes=80)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 200
    assert sorted(index["weight_map"]) == sorted(tensors)
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])
    assert len(set(index["weight_map"].values())) == 3
    assert not list(tmp_path.glob("*.part"))


def test_companions_are_copied_and_weights_are_not(tmp_path: Path) -> None:
    source = build_model(tmp_path / "m", "llama")
    target = tmp_path / "copy"
    target.mkdir()
    copy_companions(source, target)
    names = {file.name for file in target.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    assert not any(name.endswith(".safetensors") for name in names)
