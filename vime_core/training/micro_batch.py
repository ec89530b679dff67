"""One micro-batch of a step batch, packed for this rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from vime_core.training.packed import PackedBatch, pack

if TYPE_CHECKING:
    from vime_core.batch import StepBatch
    from vime_core.training.parallel import ParallelLayout


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of this rank.

    Attributes:
        samples: their indices in the step batch, [n].
        packed: the packed row.
        positions: [l] positions on the step's response axis [R] of the tokens that this rank predicts.
        is_dummy: a rank without samples runs the first one so that collectives match, and counts none of it.
    """

    samples: Sequence[int]
    packed: PackedBatch
    positions: torch.Tensor
    is_dummy: bool


def pack_micro_batch(
    batch: StepBatch, samples: Sequence[int], layout: ParallelLayout, device: torch.device
) -> MicroBatch:
    """Pack ``samples``; an empty list packs the batch's first sample as a dummy."""
    chosen = list(samples) or [0]
    starts, responses = batch.token_starts, batch.response_starts
    packed = pack(
        [batch.tokens[starts[i] : starts[i + 1]] for i in chosen],
        [int(batch.response_lengths[i]) for i in chosen],
        cp_rank=layout.cp_rank,
        cp_size=layout.cp_size,
        pad_multiple=layout.pad_multiple,
    )
    axis = np.concatenate([np.arange(responses[i], responses[i + 1]) for i in chosen])
    positions = torch.from_numpy(axis)[packed.response_index]
    return MicroBatch(chosen, packed.to(device), positions, is_dummy=not samples)
