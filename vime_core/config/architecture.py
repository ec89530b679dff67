"""Whether two Hugging Face folders hold the same model but for its weights. Reads their config.json only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vime_core.api import ConfigError
from vime_core.config.facts import read_model

#: what names and shapes of weights and the forward pass follow from
_FIELDS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
)


def differences(model: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The fields in which two configurations differ, each as ``name: value, other's value``."""
    ours, theirs = dict(_traits(model)), dict(_traits(other))
    return [f"{name}: {ours[name]}, {theirs[name]}" for name in ours if ours[name] != theirs[name]]


def check_same_architecture(folder: str, other: str, option: str) -> None:
    """Raises:
    ConfigError: ``other``, given as ``option``, is no model folder, or differs from ``folder``; names the fields.
    """
    model, second = read_model(folder), read_model(other)
    if second is None:
        raise ConfigError(f"{option} {other}: no config.json there; give a Hugging Face model folder")
    found = differences(model or {}, second)
    if found:
        raise ConfigError(
            f"{option} {other} is another architecture than {folder} ({'; '.join(found)}); it takes turns with the "
            "policy in one model, so only the weights may differ"
        )


def _traits(model: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _FIELDS:
        value = model.get(name)
        yield name, (_head_dim(model) if name == "head_dim" and value is None else value)
    # written in one place or in two, depending on who saved the model
    rope = {"rope_theta": model.get("rope_theta"), **(model.get("rope_scaling") or {})}
    rope |= model.get("rope_parameters") or {}
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    yield "rope", dict(sorted(rope.items()))


def _head_dim(model: Mapping[str, Any]) -> int | None:
    size, heads = model.get("hidden_size"), model.get("num_attention_heads")
    return size // heads if isinstance(size, int) and isinstance(heads, int) and heads else None
