"""The plan of one stage: everything put together from a configuration, a model and a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_cli.plan.activations import Pass
from vime_cli.plan.engine_memory import EngineMemory, engine_memory
from vime_cli.plan.layout import Layout
from vime_cli.plan.lengths import Lengths
from vime_cli.plan.machine import Machine
from vime_cli.plan.needs import Needs
from vime_cli.plan.packing import Packing, packing
from vime_cli.plan.parameters import RankParameters, rank_parameters
from vime_cli.plan.placement import Placement, place
from vime_cli.plan.prompts import AT_LONGEST, Prompts
from vime_cli.plan.shape import ModelShape
from vime_cli.plan.traffic import SyncTraffic, traffic
from vime_cli.plan.trainer_memory import LargestPasses, TrainerMemory, trainer_memory

if TYPE_CHECKING:
    from vime_core.config import Config


@dataclass(frozen=True)
class PlanInputs:
    """What is planned. ``arguments``: the device's for engines, under vLLM's names. ``response``: quantiles of
    lengths."""

    config: Config
    shape: ModelShape
    needs: Needs
    machine: Machine
    arguments: Mapping[str, Any]
    prompts: Prompts = AT_LONGEST
    response: Sequence[int] = ()

    def engine_arguments(self) -> Mapping[str, Any]:
        """The device's, then the user's."""
        return {**self.arguments, **self.config.vllm}

    def with_config(self, config: Config) -> PlanInputs:
        return dataclasses.replace(self, config=config)


@dataclass(frozen=True)
class StagePlan:
    """Numbers of one stage. ``parameters`` and ``trainers`` are those of each pipeline stage."""

    inputs: PlanInputs
    layout: Layout
    lengths: Lengths
    packing: Packing
    placement: Placement
    parameters: tuple[RankParameters, ...]
    trainers: tuple[TrainerMemory, ...]
    engine: EngineMemory | None
    traffic: SyncTraffic | None


def plan_stage(inputs: PlanInputs) -> StagePlan:
    """Of a configuration that keeps the rules of layout and batches.

    Raises:
        ConfigError: nothing says how long samples are.
    """
    config, shape = inputs.config, inputs.shape
    layout = Layout.of(config)
    lengths = Lengths.of(config, inputs.prompts, inputs.response, shape.context)
    packed = packing(config, layout, lengths)
    size = 2 if config.megatron.bf16 else 4
    micro = Pass(
        tokens=packed.bound,
        predicted=packed.predicted,
        chunk=config.train.log_probs_chunk_size,
        bytes=size,
        recompute=config.megatron.recompute_granularity,
        entropy=inputs.needs.entropy,
    )
    # passes without gradient may have a size of their own
    forward = dataclasses.replace(
        micro, tokens=packed.forward, predicted=packed.predicted * packed.forward // packed.bound
    )
    passes, stages = LargestPasses(micro, forward, packed.micro_batches), range(layout.pp)
    engine = None
    if config.needs_engines and config.num_engines:
        engine = engine_memory(config, shape, inputs.engine_arguments(), inputs.machine, lengths.longest)
    return StagePlan(
        inputs=inputs,
        layout=layout,
        lengths=lengths,
        packing=packed,
        placement=place(config, layout, inputs.machine.per_node),
        parameters=tuple(rank_parameters(shape, layout, stage) for stage in stages),
        trainers=tuple(trainer_memory(shape, layout, stage, inputs.needs, passes) for stage in stages),
        engine=engine,
        traffic=traffic(config, shape, size),
    )
