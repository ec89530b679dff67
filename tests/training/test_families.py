"""Every model family that a recipe or a page names is computed as Hugging Face does, or refused for the reason that is
written down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.models import build_model
from tests.support.train_ranks import make_config
from vime_core.api.errors import CheckpointError, ConfigError
from vime_core.devices.cpu import CpuBackend
from vime_core.runtime.ports import free_port
from vime_core.training.models.bridge import read_hf_config
from vime_core.training.models.families import FAMILIES, REFUSED_FAMILIES

IDS = np.array([5, 9, 33, 7, 60, 41, 12, 88, 3, 17, 70, 25])
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def config() -> Iterator[Any]:
    """One rank in this process."""
    from vime_core.training.parallel import destroy_parallel, init_parallel

    made = make_config({}, 1)
    init_parallel(made, CpuBackend(), 0, 1, f"127.0.0.1:{free_port('127.0.0.1')}")
    yield made
    destroy_parallel()


def load(config: Any, folder: Path) -> Any:
    from vime_core.training.model import MegatronModel

    model = MegatronModel.build(config, CpuBackend(), str(folder), trainable=False)
    model.load_hf()
    return model


@torch.no_grad()
def trainer_logprobs(model: Any) -> torch.Tensor:
    from vime_core.training.forward_backward import forward_step
    from vime_core.training.logprobs import ChunkedSoftmax, response_logprobs
    from vime_core.training.packed import pack

    packed = pack([IDS], [len(IDS) - 1], cp_rank=0, cp_size=1, pad_multiple=1)
    chunk = model.chunks[0]
    return response_logprobs(chunk, forward_step(chunk, packed), packed, ChunkedSoftmax(1.0, -1)).logp


@torch.no_grad()
def hugging_face_logprobs(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    ids = torch.from_numpy(IDS)
    logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids[None]).logits[0]
    return logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in sorted(FAMILIES)),
    ("qwen2_moe", {"norm_topk_prob": True}),
    ("glm4_moe", {"attention_bias": False, "use_qk_norm": False, "num_hidden_layers": 3, "first_k_dense_replace": 2}),
]


@pytest.mark.parametrize(("kind", "changes"), VARIANTS, ids=[f"{kind}{len(more) or ''}" for kind, more in VARIANTS])
def test_log_probs_are_those_of_hugging_face(kind: str, changes: dict[str, Any], config: Any, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m", kind, **changes)
    gap = (trainer_logprobs(load(config, folder)) - hugging_face_logprobs(folder)).abs().max().item()
    assert gap < 2e-5


@pytest.mark.parametrize("kind", sorted(REFUSED_FAMILIES))
def test_a_family_that_would_be_another_model_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ConfigError) as caught:
        read_hf_config(str(tmp_path))
    assert f"{kind!r} is not supported: {REFUSED_FAMILIES[kind]}" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("llama", "attention_bias", True),
        ("llama", "mlp_bias", True),
        ("llama", "hidden_act", "gelu"),
        ("llama", "quantization_config", {"quant_method": "fp8"}),
        ("qwen2", "use_sliding_window", True),
        ("qwen3", "layer_types", ["full_attention", "sliding_attention"]),
        ("qwen3_moe", "mlp_only_layers", [0]),
        ("qwen2_moe", "decoder_sparse_step", 2),
        ("mixtral", "sliding_window", 4096),
        ("mixtral", "router_jitter_noise", 0.1),
        ("glm4_moe", "n_group", 2),
        ("glm4_moe", "norm_topk_prob", False),
    ],
)
def test_a_field_that_is_not_computed_is_refused_by_name_and_value(
    kind: str, name: str, value: Any, tmp_path: Path
) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **sizes, name: value}))
    with pytest.raises(ConfigError) as caught:
        read_hf_config(str(tmp_path))
    assert f"{kind} with " in str(caught.value)
    assert f"{name} = {value!r}" in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("partial_rotary_factor", 0.5), ("attention_factor", 1.2)])
def test_rotary_settings_that_are_not_computed_are_refused(name: str, value: float, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0, name: value}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rope_parameters": rope}))
    with pytest.raises(ConfigError, match=name):
        read_hf_config(str(tmp_path))


def edit(folder: Path, drop: str | None = None, **more: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items() if name != drop}
    save_file(tensors | more, file, metadata={"format": "pt"})


def test_a_tensor_without_a_place_is_refused_by_name(config: Any, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m", "llama")
    edit(folder, **{"model.layers.0.self_attn.sinks": torch.ones(4)})
    with pytest.raises(CheckpointError, match=r"no place for.*model\.layers\.0\.self_attn\.sinks"):
        load(config, folder)


def test_a_weight_without_a_tensor_is_refused_by_name(config: Any, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m", "llama")
    edit(folder, drop="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(CheckpointError, match=r"no tensors for.*model\.layers\.1\.mlp\.up_proj\.weight"):
        load(config, folder)


def test_tensors_that_say_nothing_may_be_there(config: Any, tmp_path: Path) -> None:
    """Rotary frequencies of older releases, and a tied output layer that was written out."""
    folder = build_model(tmp_path / "m", "llama", tied=True)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "lm_head.weight": torch.ones(97, 64)}
    edit(folder, **extra)
    load(config, folder)


def test_layers_that_are_not_trained_are_kept_in_an_export(config: Any, tmp_path: Path) -> None:
    """GLM-4.5's layer behind the last, which predicts a second token."""
    folder = build_model(tmp_path / "m", "glm4_moe", num_nextn_predict_layers=1)
    name, tensor = "model.layers.2.eh_proj.weight", torch.randn(4, 8)
    edit(folder, **{name: tensor})
    load(config, folder).save_hf(str(tmp_path / "out"))
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")[name], tensor)


def test_every_family_that_a_recipe_or_a_page_names_is_decided() -> None:
    """Blocked lines of recipes name refused types; recipes without one are of families that are computed."""
    named = re.compile(r"refuses model type (\w+)")
    for recipe in sorted((ROOT / "recipes").glob("*.toml")):
        assert set(named.findall(recipe.read_text())) <= set(REFUSED_FAMILIES), recipe.name
    types = [*FAMILIES, *REFUSED_FAMILIES]
    pages = "\n".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert not {word for word in re.findall(r"model type `?(\w+)`?", pages) if "_" in word} - set(types)
