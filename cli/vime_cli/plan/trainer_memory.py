"""Memory of one trainer rank: what stays with it, and what each phase adds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vime_cli.plan import activations
from vime_cli.plan.activations import Pass
from vime_cli.plan.layout import Layout
from vime_cli.plan.needs import Needs
from vime_cli.plan.parameters import RankParameters, rank_parameters
from vime_cli.plan.shape import ModelShape
from vime_cli.plan.tensor_bytes import PeakBytes, TensorBytes

_F32 = 4


@dataclass(frozen=True)
class Part:
    """Bytes with a name. ``host``: in the machine's memory even where the device has its own."""

    name: str
    bytes: int
    host: bool = False


@dataclass(frozen=True)
class TrainerMemory:
    """Of a rank of one pipeline stage.

    Attributes:
        stays: what the rank holds all the time.
        passing: phase -> what it takes and gives back.
        export: bytes of the buffers that weights are sent from; the first rank alone has them.
    """

    stays: Sequence[Part]
    passing: Mapping[str, PeakBytes]
    export: int


@dataclass(frozen=True)
class LargestPasses:
    """The largest training pass and the largest without gradient; ``micro_batches`` are those of an optimizer step."""

    train: Pass
    forward: Pass
    micro_batches: int


def trainer_memory(shape: ModelShape, layout: Layout, stage: int, needs: Needs, passes: LargestPasses) -> TrainerMemory:
    """Of a rank of pipeline stage ``stage``."""
    size = passes.train.bytes
    mine = rank_parameters(shape, layout, stage)
    stays = list(_model(mine, layout, size, "policy"))
    if needs.sets:
        copies = "reference" if not needs.teacher else "teacher" if not needs.reference else "reference and teacher"
        stays.append(Part(f"{copies}, policy aside ({needs.sets} copies)", needs.sets * size * mine.total, True))
    if needs.critic:
        stays += _model(rank_parameters(shape, layout, stage, critic=True), layout, size, "critic")
    in_flight = max(min(layout.pp - stage, passes.micro_batches), 1)
    return TrainerMemory(
        stays=stays,
        passing={
            "log_probs": activations.forward(shape, layout, stage, passes.forward)
            if needs.forward_passes
            else PeakBytes(),
            "train": activations.training(shape, layout, stage, passes.train, in_flight),
            "sync": PeakBytes.of([TensorBytes.of(mine.largest * size * layout.tp)]),
        },
        export=2 * size * rank_parameters(shape, Layout(), 0).total,
    )


def _model(mine: RankParameters, layout: Layout, size: int, name: str) -> list[Part]:
    """Weights, float32 gradients, and Adam's two moments (with float32 weights beside 16-bit ones)."""
    a_parameter = 2 * _F32 + (_F32 if size < _F32 else 0)
    dense, expert = (layout.dp * layout.cp, layout.edp) if layout.sharded else (1, 1)
    state = a_parameter * (math.ceil(mine.dense / dense) + math.ceil(mine.expert / max(expert, 1)))
    cut = f", cut over {dense} ranks" if layout.sharded and dense > 1 else ""
    return [
        Part(f"{name}: weights", size * mine.total),
        Part(f"{name}: gradients (float32)", _F32 * mine.total),
        Part(f"{name}: optimizer state{cut}", state),
    ]
