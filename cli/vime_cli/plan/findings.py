"""What breaks, in the order in which a run would meet it, and the flags that mend it, each tried on the plan itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from vime_cli.plan.phases import Holding, holdings
from vime_cli.plan.stage_plan import PlanInputs, StagePlan, plan_stage
from vime_cli.units import GIB, MIB
from vime_core.api import ConfigError
from vime_core.config import Config, Facts, FrozenDict, violations


@dataclass(frozen=True)
class PlanFinding:
    """``breaks``: the run cannot go on there. need and limit are bytes, or tokens where ``unit`` says so."""

    phase: str
    what: str
    need: int
    limit: int
    breaks: bool
    fixes: tuple[str, ...] = ()
    unit: str = "bytes"


def findings(plan: StagePlan, facts: Facts) -> list[PlanFinding]:
    """All of them; empty where nothing is known to break. ``facts`` are for the rules that a fix must keep."""
    return [*_cache(plan), *_memory(plan, facts)]


def _cache(plan: StagePlan) -> Iterator[PlanFinding]:
    """vLLM does not start where one sequence does not fit; where not all do, it takes turns."""
    engine = plan.engine
    if engine is None or engine.holds is None:
        return
    if engine.holds < engine.longest:
        fixes = (
            f"--vllm-max-model-len {engine.holds} -> fits" if engine.holds > plan.lengths.longest else "",
            f"--rollout-num-gpus-per-engine {2 * plan.inputs.config.cluster.rollout_num_gpus_per_engine}",
        )
        what = "the engine's cache holds less than one sequence of the longest length"
        yield PlanFinding("rollout", what, engine.longest, engine.holds, True, tuple(f for f in fixes if f), "tokens")
    elif engine.holds < engine.wanted:
        what = "the engine's cache holds fewer tokens than all of its samples have at their longest; they take turns"
        yield PlanFinding("rollout", what, engine.wanted, engine.holds, False, (), "tokens")


def _memory(plan: StagePlan, facts: Facts) -> Iterator[PlanFinding]:
    limit = plan.inputs.machine.memory
    if limit is None:
        return
    for holding in holdings(plan):
        if holding.total > limit:
            largest = max(holding.parts, key=lambda part: part.bytes)
            what = f"{holding.place} is too small; its largest part: {largest.name}, {largest.bytes / GIB:.1f} GiB"
            yield PlanFinding(holding.phase, what, holding.total, limit, True, _fixes(plan, holding, limit, facts))


# fixes -----------------------------------------------------------------------------------------------------------
def _fixes(plan: StagePlan, holding: Holding, limit: int, facts: Facts) -> tuple[str, ...]:
    """At most two: those that make it fit, or else those that save the most."""
    tried: list[tuple[int, str]] = []
    for flag, config in _candidates(plan):
        need = _need(plan.inputs, config, holding, facts)
        if need is not None and need < holding.total:
            tried.append((need, f"{flag} -> {need / GIB:.1f} GiB" + (", fits" if need <= limit else "")))
    fitting = [text for need, text in tried if need <= limit]
    return tuple(fitting[:2] or [text for _, text in sorted(tried)[:2]])


def _need(inputs: PlanInputs, config: Config, holding: Holding, facts: Facts) -> int | None:
    """Bytes of the same phase under another configuration; None where that one breaks a rule the first one keeps."""
    if set(violations(config, facts)) - set(violations(inputs.config, facts)):
        return None
    try:
        other = plan_stage(inputs.with_config(config))
    except ConfigError:
        return None
    same = [h for h in holdings(other) if h.phase == holding.phase]
    return max((h.total for h in same), default=None)


def _candidates(plan: StagePlan) -> Iterator[tuple[str, Config]]:
    config = plan.inputs.config
    yield from _fewer_tokens(plan)
    if config.megatron.recompute_granularity != "full":
        yield "--recompute-granularity full", config.replace("megatron", recompute_granularity="full")
    if not config.megatron.use_distributed_optimizer and plan.layout.dp * plan.layout.cp > 1:
        yield "--use-distributed-optimizer", config.replace("megatron", use_distributed_optimizer=True)
    yield from _smaller_cache(plan)
    for name in ("tensor_model_parallel_size", "expert_model_parallel_size"):
        twice = 2 * getattr(config.megatron, name)
        flag = f"--{name.replace('_', '-')} {twice}"
        sequence = {"sequence_parallel": True} if name[0] == "t" else {}
        yield flag + " --sequence-parallel" * bool(sequence), config.replace("megatron", **{name: twice}, **sequence)
    if not config.megatron.bf16:
        yield "--bf16", config.replace("megatron", bf16=True)
    if config.train.log_probs_chunk_size > 256:
        yield "--log-probs-chunk-size 256", config.replace("train", log_probs_chunk_size=256)


def _fewer_tokens(plan: StagePlan) -> Iterator[tuple[str, Config]]:
    """Powers of two below the cap that still hold the longest sample."""
    config = plan.inputs.config
    cap, least = plan.packing.cap, -(-plan.lengths.longest // plan.layout.cp)
    if cap is None:
        if config.train.micro_batch_size > 1:
            yield "--micro-batch-size 1", config.replace("train", micro_batch_size=1)
        return
    size = 1 << (cap - 1).bit_length() - 1
    tried = []
    while size >= least and size:
        tried.append(size)
        size //= 2
    if least < cap and least not in tried:
        tried.append(least)
    for size in tried:
        yield f"--max-tokens-per-gpu {size}", config.replace("train", max_tokens_per_gpu=size)


def _smaller_cache(plan: StagePlan) -> Iterator[tuple[str, Config]]:
    """Space for one longest sequence at least."""
    engine, config = plan.engine, plan.inputs.config
    if engine is None or engine.kv_cache is None:
        return
    least = engine.longest * engine.a_token
    if plan.inputs.engine_arguments().get("kv_cache_memory_bytes"):
        half = max(engine.kv_cache // 2, least) // MIB * MIB + MIB
        if half < engine.kv_cache:
            yield f"--vllm-kv-cache-memory-bytes {half}", _with_vllm(config, kv_cache_memory_bytes=half)
    elif config.cluster.colocate:
        part = float(config.vllm.get("gpu_memory_utilization") or 0.9)
        for lower in (0.7, 0.5, 0.3):
            if lower < part:
                yield f"--vllm-gpu-memory-utilization {lower}", _with_vllm(config, gpu_memory_utilization=lower)


def _with_vllm(config: Config, **values: object) -> Config:
    return dataclasses.replace(config, vllm=FrozenDict({**config.vllm, **values}))
