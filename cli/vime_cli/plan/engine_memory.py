"""Memory of one engine worker: weights, space for keys and values, and how many samples that space holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_cli.plan.machine import Machine
from vime_cli.plan.parameters import whole
from vime_cli.plan.shape import ModelShape

if TYPE_CHECKING:
    from vime_core.config import Config

#: vLLM's own part of a device, where --vllm-gpu-memory-utilization is not given
_UTILIZATION = 0.9


@dataclass(frozen=True)
class EngineMemory:
    """Of one worker.

    Attributes:
        weights: bytes. kv_cache: bytes reserved for keys and values; negative where the weights leave no space, None
            where that follows from a device's memory which is not known.
        a_token: bytes of one token's keys and values. logits: bytes of a decoding step's.
        longest: tokens of the longest sequence that the engine takes.
        wanted: tokens of all sequences that one engine may run at a time, each at its longest.
    """

    weights: int
    kv_cache: int | None
    a_token: int
    logits: int
    longest: int
    wanted: int

    @property
    def holds(self) -> int | None:
        """Tokens that the cache holds."""
        return None if self.kv_cache is None else max(self.kv_cache, 0) // self.a_token


def engine_memory(
    config: Config, shape: ModelShape, arguments: Mapping[str, Any], machine: Machine, longest: int
) -> EngineMemory:
    """arguments: vLLM's, the device's and the user's. longest: tokens of the longest sample."""
    tp = config.cluster.rollout_num_gpus_per_engine
    dtype = str(arguments.get("dtype") or ("bfloat16" if config.megatron.bf16 else "float32"))
    size = 4 if dtype in ("float32", "float") else 2
    cached = 1 if str(arguments.get("kv_cache_dtype", "auto")).startswith("fp8") else size
    weights = size * whole(shape) // tp
    a_token = 2 * shape.layers * max(shape.kv_width // tp, shape.head_dim) * cached
    at_once = min(
        int(arguments.get("max_num_seqs") or 256), max(config.samples_per_step // max(config.num_engines, 1), 1)
    )
    logits = 4 * at_once * shape.vocab
    limit = arguments.get("max_model_len") or config.rollout.rollout_max_context_len or shape.context or longest
    return EngineMemory(
        weights=weights,
        kv_cache=_cache(arguments, machine, weights + logits),
        a_token=a_token,
        logits=logits,
        longest=int(limit),
        wanted=at_once * min(longest, int(limit)),
    )


def _cache(arguments: Mapping[str, Any], machine: Machine, taken: int) -> int | None:
    fixed = arguments.get("kv_cache_memory_bytes")
    if fixed:
        return int(fixed)
    if machine.memory is None:
        return None
    part = float(arguments.get("gpu_memory_utilization") or _UTILIZATION)
    return int(part * machine.memory) - taken
