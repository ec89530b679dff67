"""Options that a run on NVIDIA devices must have, or must not: one small rule each, with the reason in its message.

A rule gets the whole configuration and yields violations. All are reported together, before a process is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vime_core import Config
from vime_core.config import lonely_ranks, megatron_flag, megatron_on
from vime_cuda.config import CudaOptions

Rule = Callable[[Config, CudaOptions], Iterable[str]]

#: Megatron's option -> why plain torch modules cannot have it
OF_TRANSFORMER_ENGINE = {
    "fp8": "it is Transformer Engine's number format",
    "fp8_param": "it is Transformer Engine's number format",
    "tp_comm_overlap": "Transformer Engine's linears do the overlapping",
    "use_te_rng_tracker": "it is Transformer Engine's generator",
    "gradient_accumulation_fusion": "it is a kernel of APEX and of Transformer Engine's linears",
    "moe_permute_fusion": "it is Transformer Engine's kernel",
    "moe_router_fusion": "it is Transformer Engine's kernel",
}


def violations(config: Config) -> list[str]:
    """Every broken rule, one line each, in the order of the rules."""
    options = config.plugins.get("cuda") or CudaOptions()
    return [line for rule in RULES for line in rule(config, options)]


def needs_transformer_engine(config: Config, options: CudaOptions) -> Iterator[str]:
    if options.trainer != "plain":
        return
    for name, why in OF_TRANSFORMER_ENGINE.items():
        if megatron_on(config, name):
            yield f"{megatron_flag(config, name)}: {why}; leave it out, or use --cuda-trainer te"


def latent_attention(config: Config, options: CudaOptions) -> Iterator[str]:
    """Plain torch modules have no linears without tensor parallelism, which multi-latent attention is made of."""
    from vime_core.config import read_model

    model = read_model(config.model.hf_checkpoint) or {}
    if options.trainer == "plain" and model.get("kv_lora_rank"):
        yield (
            f"--cuda-trainer plain: {model.get('model_type')} has multi-latent attention, which the plain modules do "
            "not have; use --cuda-trainer te"
        )


def carrier(config: Config, options: CudaOptions) -> Iterator[str]:
    name = (config.sync.weight_sync or "").removeprefix("cuda/")
    if name == "nccl" and config.cluster.colocate:
        yield "--weight-sync nccl: NCCL refuses two ranks on one device, and --colocate has them; leave it out"
    if name == "cuda_ipc" and not config.cluster.colocate:
        yield "--weight-sync cuda_ipc: trainer and engines share no device to share memory on; leave it out"


def partners(config: Config, options: CudaOptions) -> Iterator[str]:
    yield from lonely_ranks(config, "cuda", "cuda_ipc")


def executor(config: Config, options: CudaOptions) -> Iterator[str]:
    if config.vllm.get("distributed_executor_backend") == "ray":
        yield (
            "--vllm-distributed-executor-backend ray: vLLM's workers would be placed by Ray a second time, outside of "
            "the engine's devices; leave it out"
        )


RULES: tuple[Rule, ...] = (
    needs_transformer_engine,
    latent_attention,
    carrier,
    partners,
    executor,
)
