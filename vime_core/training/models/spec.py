"""The transformer's modules in plain torch, offered to Megatron where it would take Transformer Engine's.

Names of modules and parameters equal Transformer Engine's (``linear_qkv.layer_norm_weight``,
``experts.linear_fc1.weight0``), so bridges and checkpoints written for those work unchanged.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError
from vime_core.training.models.norm import Norm

if TYPE_CHECKING:
    from megatron.core.transformer.mlp import MLPSubmodules

#: TransformerConfig values: everything that is a fused kernel of an accelerator or a second stream is off
TRANSFORMER_OVERRIDES: dict[str, Any] = {
    "use_cpu_initialization": False,
    "masked_softmax_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    "moe_permute_fusion": False,
    "moe_router_fusion": False,
    "moe_shared_expert_overlap": False,
    "deallocate_pipeline_outputs": False,
    "batch_p2p_comm": False,
}


class TorchSpecProvider:
    """Megatron's ``BackendSpecProvider`` protocol."""

    def linear(self) -> type:
        raise ConfigError("linears without tensor parallelism (multi-latent attention) are not in the torch spec")

    def column_parallel_linear(self) -> type:
        from megatron.core.tensor_parallel.layers import ColumnParallelLinear

        return ColumnParallelLinear

    def row_parallel_linear(self) -> type:
        from megatron.core.tensor_parallel.layers import RowParallelLinear

        return RowParallelLinear

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        from vime_core.training.models.norm import NormColumnParallelLinear

        return NormColumnParallelLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        return Norm

    def core_attention(self) -> type:
        from vime_core.training.models.attention import CoreAttention

        return CoreAttention

    def activation_func(self) -> type | None:
        return None

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool, moe_use_legacy_grouped_gemm: bool) -> tuple[type, Any]:
        from megatron.core.transformer.mlp import MLPSubmodules
        from megatron.core.transformer.moe.experts import TEGroupedMLP

        from vime_core.training.models.experts import ColumnGroupedLinear, RowGroupedLinear

        modules: MLPSubmodules = MLPSubmodules(linear_fc1=ColumnGroupedLinear, linear_fc2=RowGroupedLinear)
        return TEGroupedMLP, modules


#: module -> names that it takes from Transformer Engine
_PLACES: dict[str, dict[str, Any]] = {
    "megatron.core.models.gpt.gpt_layer_specs": {"TESpecProvider": TorchSpecProvider, "TENorm": Norm},
    "megatron.core.models.gpt.moe_module_specs": {"TESpecProvider": TorchSpecProvider},
}


def install() -> list[str]:
    """Set the provider in the modules that build specs. Idempotent. Returns the names of these shims."""
    names = []
    for place, values in _PLACES.items():
        module = importlib.import_module(place)
        for attribute, value in values.items():
            setattr(module, attribute, value)
            names.append(f"{place}:{attribute}")
    return names
