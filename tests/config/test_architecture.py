"""Two folders hold the same architecture, however their config.json was written, or the differing fields are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vime_core.api.errors import ConfigError
from vime_core.config.architecture import check_same_architecture, differences

MODEL: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 16},
        {"torch_dtype": "bfloat16", "transformers_version": "4.57.0", "use_cache": False, "eos_token_id": 2},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        {"rope_scaling": {"type": "default"}},
    ],
)
def test_another_way_of_writing_is_no_difference(changes: dict[str, Any]) -> None:
    assert differences(MODEL, {**MODEL, **changes}) == []
    assert differences({**MODEL, **changes}, MODEL) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"hidden_size": 128, "head_dim": 16}, ["hidden_size: 64, 128"]),
        ({"num_hidden_layers": 4, "tie_word_embeddings": True}, ["num_hidden_layers: 2, 4", "tie_word_embeddings: "]),
        ({"head_dim": 32}, ["head_dim: 16, 32"]),
        ({"num_experts": 8}, ["num_experts: None, 8"]),
        ({"rope_theta": 5e5}, ["rope: "]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ["rope: "]),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], found: list[str]) -> None:
    named = differences(MODEL, {**MODEL, **changes})
    assert len(named) == len(found)
    assert all(line.startswith(start) for line, start in zip(named, found, strict=True)), named


def test_the_error_names_option_folders_and_fields(tmp_path: Path) -> None:
    for name, changes in {"policy": {}, "other": {"num_hidden_layers": 3}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**MODEL, **changes}))
    policy, other = str(tmp_path / "policy"), str(tmp_path / "other")
    check_same_architecture(policy, policy, "--ref-load")
    with pytest.raises(ConfigError, match=r"--ref-load .*/other is another .*/policy \(num_hidden_layers: 2, 3\)"):
        check_same_architecture(policy, other, "--ref-load")
    with pytest.raises(ConfigError, match=r"no config\.json there"):
        check_same_architecture(policy, str(tmp_path), "--ref-load")
