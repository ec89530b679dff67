"""What one engine is started with, worked out once from the configuration and the device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config

#: a scheduler that returns routed experts where vLLM's own option cannot
ROUTING_SCHEDULER = "vime_core.inference.vllm.routing_scheduler.RoutingScheduler"

#: tokens of the canary prompt
_CANARY = 16
#: what vLLM allows a request to ask for by default
_MAX_LOGPROBS = 20
#: what the canary says, where there is a tokenizer
_CANARY_TEXT = "12+34=46 The capital of France is Paris. One, two, three, four, five, six, seven, eight."

#: variable of vLLM's CPU workers: one list of cores a worker, separated by "|"
_BINDING = "VLLM_CPU_OMP_THREADS_BIND"


@dataclass(frozen=True)
class EngineSpec:
    """One engine.

    Attributes:
        index: position among the run's engines.
        model: Hugging Face folder that the engine loads as version 0.
        arguments: vLLM's engine arguments under vLLM's names, as Python values: the device's, then the user's
            ``--vllm-*``, then what the run relies on.
        environment: variables that must stand before vLLM is imported.
        host: where a server listens; empty: loopback, or the node's address in a cluster of several.
        port: 0 lets the engine choose a free one.
    """

    index: int
    model: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    host: str = ""
    port: int = 0

    @property
    def tensor_parallel_size(self) -> int:
        return int(self.arguments["tensor_parallel_size"])

    @property
    def name(self) -> str:
        return f"engine {self.index}"


def engine_specs(config: Config, device: DeviceBackend, hf_folder: str) -> list[EngineSpec]:
    """One spec for each engine that vime starts.

    Raises:
        ConfigError: a ``--vllm-*`` value contradicts what the run relies on.
    """
    return [engine_spec(config, device, hf_folder, index) for index in range(config.num_engines)]


def engine_spec(config: Config, device: DeviceBackend, hf_folder: str, index: int) -> EngineSpec:
    """Of one engine. Raises ConfigError as :func:`engine_specs` does."""
    user = dict(config.vllm)
    host = str(user.pop("host", None) or "")
    port = int(user.pop("port", 0) or 0)
    tensor_parallel = config.cluster.rollout_num_gpus_per_engine
    required = {**_required(tensor_parallel), **_top_logprobs(config), **_routing(config, device)}
    required |= _sleep(config, device)
    _refuse_contradictions(user, required)
    chosen = {**_defaults(config, index, tensor_parallel), **device.engine_arguments(), **user, **required}
    environment = _environment(device, index, tensor_parallel, config.cluster.engine_cpu_threads)
    return EngineSpec(index, hf_folder, chosen, environment, host, port + index if port else 0)


def _defaults(config: Config, index: int, tensor_parallel: int) -> dict[str, Any]:
    """Values that differ from vLLM's own; ``max_model_len`` None is the model's. One worker lives in the engine."""
    own_worker = {"distributed_executor_backend": "uni"} if tensor_parallel == 1 else {}
    return {
        **own_worker,
        "dtype": "bfloat16" if config.megatron.bf16 else "float32",
        "max_model_len": config.rollout.rollout_max_context_len,
        "seed": config.data.rollout_seed + index,
        "disable_log_stats": True,
    }


def _required(tensor_parallel: int) -> dict[str, Any]:
    """What the log-probs, versions and weights of a run rely on."""
    return {
        "tensor_parallel_size": tensor_parallel,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "vime_core.inference.vllm.extension.VimeWorkerExtension",
    }


def _top_logprobs(config: Config) -> Mapping[str, Any]:
    """vLLM refuses requests for more than this many."""
    wanted = config.algorithm.score_centering_top_k + 1 if config.algorithm.use_score_centering else 0
    return {"max_logprobs": wanted} if wanted > _MAX_LOGPROBS else {}


def _routing(config: Config, device: DeviceBackend) -> Mapping[str, Any]:
    """Routed experts, if the run replays them. vLLM keeps those of cached tokens under the prefix cache's hashes."""
    if not config.train.use_rollout_routing_replay:
        return {}
    return {"enable_prefix_caching": True, **device.routing_arguments()}


def _sleep(config: Config, device: DeviceBackend) -> Mapping[str, Any]:
    """What makes memory that can be given up, where the device has such a thing."""
    return {"enable_sleep_mode": True} if config.engines_sleep(device.supports_sleep) and device.supports_sleep else {}


def _refuse_contradictions(user: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    faults = [
        f"--vllm-{key.replace('_', '-')} {user[key]}: vime sets this to {value}; leave it out"
        for key, value in required.items()
        if key in user and user[key] != value
    ]
    if faults:
        raise ConfigError(faults)


def _environment(device: DeviceBackend, index: int, workers: int, threads: int) -> dict[str, str]:
    environment = {**device.environment("engine"), "OMP_NUM_THREADS": str(threads)}
    if workers > 1 and _BINDING in environment:
        # several workers that are bound to nothing spin on one another's cores: 20 times slower
        cores = os.cpu_count() or 1
        environment[_BINDING] = "|".join(str((index * workers + rank) % cores) for rank in range(workers))
    return environment


def canary_tokens(hf_folder: str, context: int | None) -> list[int]:
    """Token ids of a fixed prompt, the same for every run of a model: plain text where there is a tokenizer.

    Text matters: tokens that the model finds very unlikely have log-probs whose rounding in bfloat16 is larger than
    what a wrong weight does.

    Args:
        context: longest sequence that the engines take, if it is limited.

    Raises:
        ConfigError: the folder has no readable config.json.
    """
    length = min(_CANARY, context - 1) if context else _CANARY
    written = _encode(Path(hf_folder) / "tokenizer.json")[:length]
    return written if len(written) > 1 else _spread(Path(hf_folder) / "config.json", length)


def _encode(tokenizer: Path) -> list[int]:
    """The canary text in tokens; empty where the folder has no fast tokenizer."""
    if not tokenizer.is_file():
        return []
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tokenizer)).encode(_CANARY_TEXT, add_special_tokens=False).ids


def _spread(path: Path, length: int) -> list[int]:
    """Ids spread over the lower half of the vocabulary (its top is often padding)."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; --hf-checkpoint must be a Hugging Face model folder") from error
    size = values.get("vocab_size") or values.get("text_config", {}).get("vocab_size")
    if not size:
        raise ConfigError(f"{path}: no vocab_size")
    return [(3 + position * 7919) % max(int(size) // 2, 1) for position in range(length)]
