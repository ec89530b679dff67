"""Options that a run on NPUs must have, or must not: one small rule each, with the reason in its message.

A rule gets the whole configuration and yields violations. All are reported together, before a process is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vime_ascend.chips import chip_named
from vime_ascend.config import AscendOptions
from vime_ascend.ports import slices
from vime_core import Config
from vime_core.api import ConfigError
from vime_core.config import lonely_ranks, megatron_flag, megatron_on

Rule = Callable[[Config, AscendOptions], Iterable[str]]

#: Megatron's option -> why no NPU has it; on, they end in an import or a kernel that is not there
ABSENT = {
    "gradient_accumulation_fusion": "it is a kernel of APEX",
    "tp_comm_overlap": "it is Transformer Engine's, over CUDA's user buffers",
    "fp8": "it is Transformer Engine's number format",
    "fp8_param": "it is Transformer Engine's number format",
    "enable_cuda_graph": "there are no CUDA graphs",
    "external_cuda_graph": "there are no CUDA graphs",
    "cuda_graph_impl": "there are no CUDA graphs",
    "defer_embedding_wgrad_compute": "it needs gradient_accumulation_fusion",
    "use_te_rng_tracker": "it is Transformer Engine's generator",
    "moe_enable_deepep": "DeepEP is for CUDA",
}
#: fused kernels of CUDA that plain torch modules do without
FUSED = (
    "masked_softmax_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "apply_rope_fusion",
    "persist_layer_norm",
    "moe_permute_fusion",
    "moe_router_fusion",
)
#: model types whose kernels exist for NPUs only outside of vLLM-Ascend's releases
_UNSUPPORTED_ATTENTION = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


def violations(config: Config) -> list[str]:
    """Every broken rule, one line each, in the order of the rules."""
    options = config.plugins.get("ascend") or AscendOptions()
    return [line for rule in RULES for line in rule(config, options)]


def absent_in_megatron(config: Config, options: AscendOptions) -> Iterator[str]:
    for name, why in ABSENT.items():
        if megatron_on(config, name):
            yield f"{megatron_flag(config, name)}: no NPU has it, {why}; leave it out"


def fused_in_plain(config: Config, options: AscendOptions) -> Iterator[str]:
    if options.trainer != "plain":
        return
    for name in FUSED:
        if megatron_on(config, name):
            yield f"{megatron_flag(config, name)}: a fused CUDA kernel; leave it out, or use --ascend-trainer mindspeed"


def mindspeed_arguments(config: Config, options: AscendOptions) -> Iterator[str]:
    """Values that MindSpeed asserts, said before a process is started."""
    given = options.mindspeed
    if given and options.trainer == "plain":
        yield f"--ascend-mindspeed {sorted(given)}: MindSpeed is not used; add --ascend-trainer mindspeed"
    if given.get("use_flash_attn") is False:
        yield "--ascend-mindspeed use_flash_attn=false: MindSpeed's attention has no other path here; leave it out"
    if given.get("sparse_mode", 2) not in (0, 2):
        yield f"--ascend-mindspeed sparse_mode={given['sparse_mode']}: only 0 (full mask) and 2 (causal) are right"


def virtual_pipeline(config: Config, options: AscendOptions) -> Iterator[str]:
    name = "virtual_pipeline_model_parallel_size"
    if options.trainer == "mindspeed" and config.megatron_extra.get(name) is not None:
        flag = megatron_flag(config, name)
        yield f"{flag}: mbridge cannot build virtual stages under MindSpeed's patches; leave it out"


def checkpoint_in_background(config: Config, options: AscendOptions) -> Iterator[str]:
    if megatron_on(config, "async_save"):
        flag = megatron_flag(config, "async_save")
        yield f"{flag}: writing in a forked process loses the NPU's context; leave it out"


def weight_layout(config: Config, options: AscendOptions) -> Iterator[str]:
    extra = config.vllm.get("additional_config") or {}
    mode = extra.get("weight_nz_mode", 0) if isinstance(extra, dict) else 0
    if mode:
        yield (
            f"--vllm-additional-config weight_nz_mode={mode}: weights in the NZ layout cannot be updated in place, and "
            "vLLM-Ascend refuses to; leave it out"
        )


def graphs(config: Config, options: AscendOptions) -> Iterator[str]:
    if config.vllm.get("enforce_eager") is False and not options.graphs:
        yield (
            "--no-vllm-enforce-eager: a captured ACL graph may go on with the addresses of old weights after an "
            "update; try the model by two updates and a comparison, then add --ascend-graphs"
        )


def devices_of_a_machine(config: Config, options: AscendOptions) -> Iterator[str]:
    chip = chip_named(options.chip) if options.chip != "auto" else None
    if chip is None or chip.devices is None:
        return
    ours, each = config.cluster.actor_num_gpus_per_node, config.cluster.rollout_num_gpus_per_engine
    if ours > chip.devices:
        yield f"--actor-num-gpus-per-node {ours}: a machine with {chip.name} has {chip.devices} NPUs"
    if each > chip.devices:
        yield f"--rollout-num-gpus-per-engine {each}: an engine has one machine, {chip.name} has {chip.devices} NPUs"


def kernels_of_the_model(config: Config, options: AscendOptions) -> Iterator[str]:
    from vime_core.config import read_model

    kind = (read_model(config.model.hf_checkpoint) or {}).get("model_type")
    if kind in _UNSUPPORTED_ATTENTION:
        yield (
            f"--hf-checkpoint {config.model.hf_checkpoint}: {kind} has gated delta layers, which megatron-core cannot "
            "train on packed sequences and which need kernels that no release for NPUs has"
        )


def partners(config: Config, options: AscendOptions) -> Iterator[str]:
    yield from lonely_ranks(config, "ascend", "npu_ipc", "NPU")


def ports(config: Config, options: AscendOptions) -> Iterator[str]:
    try:
        slices(options.hccl_ports)
    except ConfigError as error:
        yield from error.violations


RULES: tuple[Rule, ...] = (
    absent_in_megatron,
    fused_in_plain,
    mindspeed_arguments,
    virtual_pipeline,
    checkpoint_in_background,
    weight_layout,
    graphs,
    devices_of_a_machine,
    kernels_of_the_model,
    partners,
    ports,
)
