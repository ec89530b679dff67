"""A batch's experts as the rows of one rank: in the order of the packed row, its context-parallel and its
sequence-parallel share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from vime_core.api import FREE_CHOICE, ROUTING, TrainerError

if TYPE_CHECKING:
    from vime_core.batch import StepBatch
    from vime_core.training.packed import MicroBatch


@dataclass(frozen=True)
class ExpertLayers:
    """Layers with experts, counted from 0 over all layers of the model.

    Attributes:
        mine: those that this rank holds.
        whole: those of the whole model; each chooses ``topk`` of ``experts``.
    """

    mine: Sequence[int]
    whole: Sequence[int]
    experts: int
    topk: int


def check_sampled(batch: StepBatch, layers: ExpertLayers) -> None:
    """Every rank sees the same batch, so all of them find the same fault, and none waits for another.

    Raises:
        TrainerError: the batch has no experts, or not such as this model could choose.
    """
    column = sampled_column(batch)
    if column.ndim != 3 or column.shape[2] != layers.topk or column.shape[1] <= max(layers.whole):
        shape = f"{list(column.shape)} (tokens, layers, top-k)"
        has = f"the model has layer {max(layers.whole)} and top-k {layers.topk}"
        raise TrainerError(f"routing replay: experts {shape}; {has}")
    for layer in layers.whole:
        rows = column[:, layer]
        ordered = np.sort(rows, axis=-1)
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(-1)
        wrong = (ordered[:, -1] >= layers.experts) | (ordered[:, 0] < 0) | twice
        wrong &= (rows != FREE_CHOICE).any(-1)
        if wrong.any():
            token = int(np.argmax(wrong))
            sample = int(np.searchsorted(batch.token_starts, token, side="right")) - 1
            where = f"group {batch.group[sample]} rollout {batch.rollout[sample]}, layer {layer}"
            raise TrainerError(
                f"routing replay: {where}: {rows[token].tolist()} are not different experts of {layers.experts}"
            )


def sampled_column(batch: StepBatch) -> np.ndarray:
    """[T, layers, topk] of the batch.

    Raises:
        TrainerError: it has none.
    """
    if ROUTING.name not in batch.extra:
        raise TrainerError(f"routing replay: the step batch has no column {ROUTING.name!r}, the experts of the sampler")
    return batch.extra[ROUTING.name][1]


def sampled_rows(batch: StepBatch, micro: MicroBatch, layers: Sequence[int]) -> dict[int, torch.Tensor]:
    """Layer -> [t, topk] int16 for the t local rows of the micro-batch; FREE_CHOICE in padding and where the batch says
    so.

    Args:
        layers: the layers wanted, counted from 0 over all layers of the model.
    """
    starts, tokens = batch.token_starts, micro.packed.tokens.cpu().numpy()
    positions = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in micro.samples])
    rows = sampled_column(batch)[positions[tokens]][:, list(layers)]
    rows[tokens < 0] = FREE_CHOICE
    device = micro.packed.tokens.device
    return {layer: torch.from_numpy(np.ascontiguousarray(rows[:, at])).to(device) for at, layer in enumerate(layers)}


def local_part(rows: torch.Tensor, n: int) -> torch.Tensor:
    """[t, ...] rows of a context-parallel rank -> the n that a router sees: all, or a tensor-parallel rank's share
    under sequence parallelism."""
    if len(rows) == n:
        return rows
    from megatron.core import parallel_state

    start = parallel_state.get_tensor_model_parallel_rank() * n
    return rows[start : start + n]
