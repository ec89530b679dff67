"""Seconds of a step at the calibrated speed: a lower bound, since nothing runs at the speed of a large matrix product.

A forward pass costs two FLOPs a parameter and token, and ``2 L q`` a token and layer for causal attention over a mean
of ``L / 2`` keys; training costs three times that, four with full recomputation. Decoding reads all weights once a
token, and keys and values of what came before. A sync writes the weights, reads and loads them: three copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_cli.plan.calibration import Calibration
from vime_cli.plan.engine_memory import EngineMemory
from vime_cli.plan.lengths import Lengths
from vime_cli.plan.parameters import active
from vime_cli.plan.shape import ModelShape

if TYPE_CHECKING:
    from vime_cli.plan.stage_plan import StagePlan

#: times that the bytes of a sync are moved in memory: written, read for their digest, loaded
_MOVES = 3


@dataclass(frozen=True)
class Timing:
    """Seconds by phase, and what they are built from."""

    phases: dict[str, float]
    built_from: str

    @property
    def total(self) -> float:
        return sum(self.phases.values())


def forward_flops(shape: ModelShape, lengths: Lengths) -> float:
    """Of one forward pass over all samples of a step; the output layer works on response tokens alone."""
    body = active(shape) - shape.vocab * shape.hidden
    linear = 2.0 * body * lengths.tokens + 2.0 * shape.vocab * shape.hidden * lengths.responses
    attention = sum(2.0 * shape.layers * shape.q_width * total * total for total in lengths.totals)
    return linear + attention


def timing(plan: StagePlan, speed: Calibration) -> Timing:
    """Of one rollout step."""
    config, shape, lengths, needs = plan.inputs.config, plan.inputs.shape, plan.lengths, plan.inputs.needs
    once = forward_flops(shape, lengths) / plan.layout.world / speed.flops
    factor = 4 if config.megatron.recompute_granularity == "full" else 3
    phases = {"log_probs": once * needs.forward_passes, "train": once * factor * (2 if needs.critic else 1)}
    if plan.engine is not None and config.num_engines:
        phases = {"rollout": _decoding(shape, lengths, plan.engine, speed, config.num_engines), **phases}
    if plan.traffic is not None:
        phases["sync"] = _MOVES * plan.traffic.payload / speed.copy / plan.traffic.steps
    said = (
        f"{speed.flops / 1e9:,.0f} GFLOP/s of {speed.dtype} products with {speed.threads} threads and "
        f"{speed.copy / 1e9:,.1f} GB/s of copies, measured here, for every rank and engine alike: a lower bound"
    )
    return Timing(phases, said)


def _decoding(shape: ModelShape, lengths: Lengths, engine: EngineMemory, speed: Calibration, engines: int) -> float:
    """Bound by memory (weights once a step of the engine, keys and values of each sequence) or by FLOPs."""
    longest = max(response for _, response in lengths.samples)
    cached = sum(engine.a_token * r * (p + r / 2) for p, r in lengths.samples) / engines
    reading = (engine.weights * longest + cached) / speed.copy
    computing = forward_flops(shape, lengths) / engines / speed.flops
    return max(reading, computing)
