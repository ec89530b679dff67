"""Small models of every kind that a plan knows, as contents of a config.json; sizes differ, so none hides another."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, "model_type": "llama", "tie_word_embeddings": False, "architectures": ["LlamaForCausalLM"]},
    "qwen2": {**_COMMON, "model_type": "qwen2", "tie_word_embeddings": True, "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {**_COMMON, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen3_moe": {
        **_COMMON,
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "mixtral": {
        **_COMMON,
        "model_type": "mixtral",
        "tie_word_embeddings": False,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
