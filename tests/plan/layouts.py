"""Layouts whose ranks are counted, by Megatron and by the plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vime_core.config.frozen import FrozenDict
from vime_core.config.sections import Config


@dataclass(frozen=True)
class Case:
    """shape: of tests.plan.shapes. world: ranks. megatron: fields of that section. extra: Megatron's further ones."""

    shape: str
    world: int = 1
    megatron: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    critic: bool = False


TP2 = {"tensor_model_parallel_size": 2}
CASES = {
    "llama": Case("llama"),
    "qwen2": Case("qwen2"),
    "qwen3": Case("qwen3"),
    "qwen3_moe": Case("qwen3_moe"),
    "mixtral": Case("mixtral"),
    "qwen3, critic": Case("qwen3", critic=True),
    "qwen2, tensor 2, data 2": Case("qwen2", 4, TP2),
    "qwen3, tensor 2, padded": Case("qwen3", 2, TP2, {"make_vocab_size_divisible_by": 64}),
    "qwen3, pipeline 2": Case("qwen3", 2, {"pipeline_model_parallel_size": 2}),
    "llama, pipeline 2, uneven": Case(
        "llama", 2, {"pipeline_model_parallel_size": 2}, {"num_layers_in_first_pipeline_stage": 1}
    ),
    "llama, tensor, pipeline, context, data": Case(
        "llama", 16, {**TP2, "pipeline_model_parallel_size": 2, "context_parallel_size": 2}
    ),
    "qwen3_moe, expert 2": Case("qwen3_moe", 2, {"expert_model_parallel_size": 2}),
    "qwen3_moe, tensor 2, expert 4 whole": Case(
        "qwen3_moe",
        8,
        {**TP2, "sequence_parallel": True, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1},
    ),
}


def config_of(name: str) -> Config:
    case = CASES[name]
    config = Config(megatron_extra=FrozenDict(case.extra)).replace("megatron", **case.megatron)
    return config.replace("cluster", actor_num_gpus_per_node=case.world)
