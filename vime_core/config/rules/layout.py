"""Ranks, devices and engines: what has to divide what, and who may share with whom."""

from __future__ import annotations

from collections.abc import Iterator

from vime_core.config.catalogue import as_flag
from vime_core.config.facts import Facts
from vime_core.config.pipeline_stages import stage_faults
from vime_core.config.rules.option_text import flag
from vime_core.config.sections import Config

_TRAINER = ("actor_num_nodes", "actor_num_gpus_per_node")
_MODEL_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def ranks_by_model_parallel(config: Config, facts: Facts) -> str | None:
    size = config.model_parallel_size
    if size < 1 or config.trainer_ranks % size == 0:
        return None
    return (
        f"{config.trainer_ranks} trainer ranks cannot hold whole replicas of {size} ranks: {flag(config, *_TRAINER)}, "
        f"{flag(config, *_MODEL_PARALLEL)}; make their product divide the ranks"
    )


def ranks_by_expert_parallel(config: Config, facts: Facts) -> str | None:
    m = config.megatron
    tensor = m.expert_tensor_parallel_size or m.tensor_model_parallel_size
    size = tensor * m.expert_model_parallel_size * m.pipeline_model_parallel_size
    if m.expert_model_parallel_size == 1 or size < 1 or config.trainer_ranks % size == 0:
        return None
    return (
        f"{config.trainer_ranks} trainer ranks are not a multiple of {size} (expert tensor x expert x pipeline): "
        f"{flag(config, 'expert_model_parallel_size', 'pipeline_model_parallel_size')}; add ranks or split less"
    )


def heads_by_tensor_parallel(config: Config, facts: Facts) -> Iterator[str]:
    """Whole heads a rank; an engine copies key-value heads when it has more ranks than there are."""
    heads = facts.number("num_attention_heads")
    groups = facts.number("num_key_value_heads")
    for name, size, copies in (
        ("tensor_model_parallel_size", config.megatron.tensor_model_parallel_size, False),
        ("rollout_num_gpus_per_engine", config.cluster.rollout_num_gpus_per_engine, True),
    ):
        if size < 1:
            continue
        if heads and heads % size:
            yield f"{flag(config, name)} must be a divisor of the model's {heads} attention heads"
        elif groups and groups % size and not (copies and size % groups == 0):
            yield f"{flag(config, name)} must be a divisor of the model's {groups} key-value heads"


def layers_by_pipeline(config: Config, facts: Facts) -> list[str]:
    layers = facts.number("num_hidden_layers")
    return stage_faults(config, layers) if layers else []


def experts_by_expert_parallel(config: Config, facts: Facts) -> str | None:
    size = config.megatron.expert_model_parallel_size
    if size <= 1 or facts.model is None:
        return None
    if not facts.experts:
        return f"{flag(config, 'expert_model_parallel_size')}, but the model has no experts; leave it at 1"
    if facts.experts % size:
        return f"{flag(config, 'expert_model_parallel_size')} does not divide the model's {facts.experts} experts"
    return None


def sequence_parallel(config: Config, facts: Facts) -> str | None:
    m = config.megatron
    if m.sequence_parallel and m.tensor_model_parallel_size < 2:
        return f"{flag(config, 'sequence_parallel')} needs more than {flag(config, 'tensor_model_parallel_size')}"
    if facts.experts and m.tensor_model_parallel_size > 1 and not m.sequence_parallel:
        return (
            f"{flag(config, 'tensor_model_parallel_size')} of a model with experts needs --sequence-parallel "
            f"({flag(config, 'sequence_parallel')})"
        )
    return None


def engines_by_devices(config: Config, facts: Facts) -> str | None:
    total, per = config.cluster.rollout_num_gpus, config.cluster.rollout_num_gpus_per_engine
    if total is None or per < 1 or total % per == 0:
        return None
    return (
        f"{flag(config, 'rollout_num_gpus')} is not a multiple of {flag(config, 'rollout_num_gpus_per_engine')}; "
        "engines would be left with too few devices"
    )


def external_engines(config: Config, facts: Facts) -> Iterator[str]:
    """Engines that vime does not start take no devices of its own and no arguments."""
    if not config.engine.rollout_external_engine_addrs:
        return
    external = flag(config, "rollout_external_engine_addrs")
    if config.cluster.rollout_num_gpus is not None:
        yield f"{external} excludes {flag(config, 'rollout_num_gpus')}: vime starts no engine; leave out one of them"
    if config.cluster.colocate:
        yield f"{external} excludes {flag(config, 'colocate')}: those engines have devices of their own"
    for name in config.vllm:
        vllm = as_flag(f"vllm_{name}")
        yield f"{external} excludes {vllm} ({config.provenance.get('vllm_' + name, 'default')}): vime starts no engine"


def transport(config: Config, facts: Facts) -> Iterator[str]:
    if config.engine.engine_transport != "direct":
        return
    direct = flag(config, "engine_transport")
    if config.engine.rollout_external_engine_addrs:
        yield f"{direct} reaches only an engine that vime starts, not {flag(config, 'rollout_external_engine_addrs')}"
    elif config.num_engines > 1:
        yield f"{direct} serves one engine, here are {config.num_engines}: use --engine-transport router"
    if config.engine.vllm_router_ip or config.router:
        yield f"{direct} uses no router; leave out the router's options or use --engine-transport router"


def external_router(config: Config, facts: Facts) -> Iterator[str]:
    ip, port = config.engine.vllm_router_ip, config.engine.vllm_router_port
    if (ip is None) != (port is None):
        yield f"{flag(config, 'vllm_router_ip', 'vllm_router_port')}: give both, or neither"
    if ip and config.router:
        names = ", ".join(as_flag(f"router_{name}") for name in config.router)
        yield f"{flag(config, 'vllm_router_ip')} is a router that vime does not start; {names} cannot reach it"


RULES = (
    ranks_by_model_parallel,
    ranks_by_expert_parallel,
    heads_by_tensor_parallel,
    layers_by_pipeline,
    experts_by_expert_parallel,
    sequence_parallel,
    engines_by_devices,
    external_engines,
    transport,
    external_router,
)
