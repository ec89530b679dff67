"""The sizes of a model, read from a Hugging Face config.json: all that parameter counts and activations follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vime_core.api import ConfigError
from vime_core.config import Facts

#: model type -> traits that its config.json does not spell out
_TRAITS: Mapping[str, Mapping[str, bool]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "mixtral": {},
}
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder.

    Attributes:
        ffn: inner width of a dense layer's gated MLP (of one expert's, where there are experts).
        experts: experts a layer, 0 for a dense model; experts_per_token: those that a token visits.
        tied: embedding and output layer are one matrix.
        context: positions that the model was made for, None where the configuration does not say.
    """

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    context: int | None = None

    @property
    def q_width(self) -> int:
        """Elements of a token's queries, all heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys (its values are as many)."""
        return self.kv_heads * self.head_dim

    @classmethod
    def of(cls, model: Mapping[str, Any], where: str = "config.json") -> ModelShape:
        """From the contents of a config.json.

        Raises:
            ConfigError: a model type whose layers are not known here, or a size that is missing.
        """
        kind = str(model.get("model_type"))
        if kind not in _TRAITS:
            known = ", ".join(sorted(_TRAITS))
            raise ConfigError(f"{where}: the sizes of model type {kind!r} cannot be planned; known: {known}")
        experts = Facts(model=model).experts or 0
        inner = "moe_intermediate_size" if experts and "moe_intermediate_size" in model else "intermediate_size"
        missing = [name for name in (*_NEEDED, inner) if not isinstance(model.get(name), int)]
        if missing:
            raise ConfigError(f"{where}: no {', '.join(missing)}; give a Hugging Face config.json")
        heads = model["num_attention_heads"]
        return cls(
            model_type=kind,
            hidden=model["hidden_size"],
            layers=model["num_hidden_layers"],
            heads=heads,
            kv_heads=model.get("num_key_value_heads") or heads,
            head_dim=model.get("head_dim") or model["hidden_size"] // heads,
            ffn=model[inner],
            vocab=model["vocab_size"],
            tied=bool(model.get("tie_word_embeddings", False)),
            experts=experts,
            experts_per_token=model.get("num_experts_per_tok") or 0 if experts else 0,
            context=model.get("max_position_embeddings"),
            **_TRAITS[kind],
        )
