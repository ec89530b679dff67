"""The model families that the trainer computes as Hugging Face does, and those that it refuses, with the reason.

A configuration is honoured field by field: each is read by the bridge, or says nothing about the function, or has to
have the one value that the trainer computes. What the family's own class declares and no list here names has to be at
its default, so a field of a later release is refused by name until someone has looked at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: read from every configuration
_READ = frozenset({
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings",
    "rope_parameters", "rope_theta", "rope_scaling", "num_experts_per_tok", "num_experts", "num_local_experts",
})  # fmt: skip
#: say nothing about the log-probs: names, token ids, what a pass returns, losses that are not trained, initialisation,
#: dropout (always off here), and windows, which are on only where ``use_sliding_window`` or ``layer_types`` says so
_SILENT = frozenset({
    "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version",
    "id2label", "label2id", "problem_type", "output_attentions", "output_hidden_states",
    "return_dict", "use_cache", "chunk_size_feed_forward", "bos_token_id", "eos_token_id",
    "pad_token_id", "initializer_range", "max_position_embeddings", "attention_dropout",
    "output_router_logits", "router_aux_loss_coef", "max_window_layers", "pretraining_tp",
})  # fmt: skip
_EXPERTS: Mapping[str, tuple[Any, ...]] = {"mlp_only_layers": ([], None), "decoder_sparse_step": (1,)}
_WINDOWS: Mapping[str, tuple[Any, ...]] = {"use_sliding_window": (False,), "sliding_window": (None, 0)}
#: fields of every family -> the values at which the trainer is right
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "is_encoder_decoder": (False,),
    "quantization_config": (None,),
    "compression_config": (None,),
    "dual_chunk_attention_config": (None,),
    **_WINDOWS,
}
#: what rotary settings may hold; a factor on attention (yarn) is not among it
_ROPE_READ = frozenset({
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings",
})  # fmt: skip
#: how rotary frequencies may be scaled (those whose formula is a fixed vector without a factor on attention)
ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class Family:
    """What one ``model_type`` adds to the above.

    Attributes:
        read: fields that its bridge reads beside those of every family.
        only: fields -> the values at which the trainer is right.
        values: of a configuration -> Megatron's values that the bridge leaves out, or has wrong.
        partial_rotary: the bridge rotates the share of a head that ``partial_rotary_factor`` says.
        untrained: of a configuration -> the start of the names of tensors that the trainer has no place for, which are
            not part of the function and are kept as they are in an exported folder.
    """

    read: frozenset[str] = frozenset()
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    values: Callable[[Any], dict[str, Any]] = lambda hf: {}
    partial_rotary: bool = False
    untrained: Callable[[Any], tuple[str, ...]] = lambda hf: ()


def _softmax_router(hf: Any) -> dict[str, Any]:
    """Softmax over the chosen experts is softmax over all, renormalised over the chosen."""
    return {"moe_router_pre_softmax": not hf.norm_topk_prob}


def _qwen2_moe(hf: Any) -> dict[str, Any]:
    """Its bridge leaves out the shared expert's gate."""
    return _softmax_router(hf) | {"moe_shared_expert_gate": True, "add_qkv_bias": getattr(hf, "qkv_bias", True)}


def _glm4_moe(hf: Any) -> dict[str, Any]:
    """Its bridge has an auxiliary loss and the width of one shared expert."""
    return {
        "moe_router_load_balancing_type": "none",
        "moe_shared_expert_intermediate_size": hf.moe_intermediate_size * hf.n_shared_experts,
        "add_qkv_bias": hf.attention_bias,
    }


def _prediction_layers(hf: Any) -> tuple[str, ...]:
    """Layers behind the last that predict further tokens; transformers does not load them either."""
    first = hf.num_hidden_layers
    return tuple(f"model.layers.{first + n}." for n in range(getattr(hf, "num_nextn_predict_layers", None) or 0))


_MOE_READ = frozenset({"moe_intermediate_size", "norm_topk_prob"})

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_moe": Family(_MOE_READ, _EXPERTS, _softmax_router),
    "qwen2_moe": Family(
        _MOE_READ | {"shared_expert_intermediate_size", "qkv_bias"},
        _EXPERTS,
        _qwen2_moe,
    ),
    "mixtral": Family(only={"router_jitter_noise": (0.0,)}, values=lambda hf: {"moe_router_pre_softmax": False}),
    "glm4_moe": Family(
        _MOE_READ
        | {"n_routed_experts", "n_shared_experts", "routed_scaling_factor", "first_k_dense_replace", "use_qk_norm"}
        | {"partial_rotary_factor", "num_nextn_predict_layers", "attention_bias"},
        {"n_group": (1,), "topk_group": (1,), "norm_topk_prob": (True,), "tie_word_embeddings": (False,)},
        _glm4_moe,
        partial_rotary=True,
        untrained=_prediction_layers,
    ),
}

_LATENT = "the trainer's layers have no multi-latent attention"
_DELTA = "the trainer's layers have no gated delta net"
_VISION = "the trainer has no vision tower"
#: families that are asked for -> why the trainer refuses them
REFUSED_FAMILIES: Mapping[str, str] = {
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "glm4_moe_lite": _LATENT,
    "glm4": "the trainer's layers have no norm behind attention and MLP",
    "minimax_m2": "the trainer's layers have no norm over all heads of queries and keys",
    "mimo": "its configuration is code out of the checkpoint, which is not run",
    "qwen3_next": _DELTA,
    "qwen3_5": _DELTA,
    "qwen3_5_moe": _DELTA,
    "qwen3_vl": _VISION,
    "qwen3_vl_moe": _VISION,
    "gpt_oss": "the trainer's layers have no attention sinks and no experts with biases",
}


def refusal(model_type: str) -> str | None:
    """Why the trainer cannot load a model type; None where it can."""
    if model_type in FAMILIES:
        return None
    known = f"it loads: {', '.join(sorted(FAMILIES))}"
    return f"{REFUSED_FAMILIES[model_type]} ({known})" if model_type in REFUSED_FAMILIES else known


def not_honoured(hf: Any) -> list[str]:
    """``name = value`` of each field of a transformers configuration that would change the function and is not
    computed."""
    family = FAMILIES[hf.model_type]
    read = _READ | family.read | _SILENT
    only = {name: values for name, values in _ONLY.items() if name not in family.read} | dict(family.only)
    default = type(hf)().to_dict()
    found = []
    for name, value in sorted(hf.to_dict().items()):
        known = name in read or name not in default
        if value not in only[name] if name in only else not known and not _plain(name, value, default[name]):
            found.append(f"{name} = {value!r}")
    return found + _rope_not_honoured(hf, family)


def _plain(name: str, value: Any, default: Any) -> bool:
    if name == "layer_types":
        return set(value or ()) <= {"full_attention"}
    return bool(value == default)


def rope_of(hf: Any) -> dict[str, Any]:
    """Rotary settings, wherever the release of transformers keeps them."""
    rope = dict(getattr(hf, "rope_parameters", None) or {"rope_theta": hf.rope_theta})
    return {"rope_type": "default", **rope}


def _rope_not_honoured(hf: Any, family: Family) -> list[str]:
    rope = rope_of(hf)
    found = [
        f"rope_parameters[{name!r}] = {value!r}"
        for name, value in sorted(rope.items())
        if name not in _ROPE_READ
        and value is not None
        and not (name == "partial_rotary_factor" and (family.partial_rotary or value == 1.0))
    ]
    if rope["rope_type"] not in ROPE_TYPES:
        found.insert(0, f"rope type {rope['rope_type']!r} (right are: {', '.join(ROPE_TYPES)})")
    return found
