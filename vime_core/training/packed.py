"""Several samples as one row of tokens, and the maps back to their response tokens.

Megatron sees one packed row (``thd``): sequences end to end, ``cu_seqlens`` between them. Under context parallelism
each sequence is padded to a multiple of ``2 C`` and cut into ``2 C`` chunks; rank ``k`` holds chunks ``k`` and ``2 C -
1 - k`` of every sequence (zigzag), which balances causal attention. The row that predicts a token is the row of the
token before it, so a batch carries, for each response token that this rank predicts: the local row, the target id, and
the place of the token on the micro-batch's response axis. Log-probs come out in that order; ``scatter`` puts them on
the axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams

    from vime_core.batch import StepBatch
    from vime_core.training.parallel import ParallelLayout


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch of n samples with r response tokens together, as one context-parallel rank holds it.

    t: local tokens (all tokens, padded, divided by the context-parallel size). l: response tokens whose predicting row
    is on this rank; l == r without context parallelism, and then ``response_index`` is ``arange(r)``.

    Attributes:
        input_ids: [1, t] int64.
        position_ids: [1, t] int64, position in the sample.
        params: Megatron's packed-sequence parameters, of the whole (padded) sequences.
        rows: [l] int64, local row (0..t-1) that predicts the token.
        targets: [l] int64, the token's id.
        response_index: [l] int64, ascending: place of the token on the response axis [r].
        tokens: [t] int64: which of the samples' tokens, end to end without padding, a local row holds; -1 for padding.
        sample_index: [l] int64: which of the n samples the token belongs to.
        response_lengths: [n] response tokens a sample.
        cp_size: context-parallel size the batch was cut for.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    params: PackedSeqParams
    rows: torch.Tensor
    targets: torch.Tensor
    response_index: torch.Tensor
    sample_index: torch.Tensor
    tokens: torch.Tensor
    response_lengths: tuple[int, ...]
    cp_size: int = 1

    @property
    def response_tokens(self) -> int:
        """r: response tokens of the micro-batch, over all context-parallel ranks."""
        return sum(self.response_lengths)

    def local(self, values: torch.Tensor) -> torch.Tensor:
        """[r] -> [l]: the values at this rank's response tokens."""
        return values.index_select(0, self.response_index)

    def scatter(self, values: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
        """[l] -> [r]: this rank's values in response order, ``fill`` elsewhere. With ``fill=0`` the sum over the
        context-parallel group is the whole axis."""
        full = values.new_full((self.response_tokens,), fill)
        return full.index_copy(0, self.response_index, values)

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch with its tensors on ``device``."""
        names = ("input_ids", "position_ids", "rows", "targets", "response_index", "sample_index", "tokens")
        moved = {name: getattr(self, name).to(device) for name in names}
        params = _params(self.params.cu_seqlens_q.to(device), self.params.max_seqlen_q)
        return PackedBatch(params=params, response_lengths=self.response_lengths, cp_size=self.cp_size, **moved)


def pack(
    tokens: Sequence[np.ndarray],
    response_lengths: Sequence[int],
    *,
    cp_rank: int = 0,
    cp_size: int = 1,
    pad_multiple: int = 1,
) -> PackedBatch:
    """Pack samples, in order, for one context-parallel rank.

    Args:
        tokens: prompt and response ids of each sample, one 1-d integer array a sample.
        response_lengths: response tokens of each sample (its last tokens).
        pad_multiple: the row's whole length becomes a multiple of it (``ParallelLayout.pad_multiple``: tensor times
            context parallel size under sequence parallelism).

    Raises:
        ValueError: no samples, or a response that has no token before it.
    """
    lengths = [len(ids) for ids in tokens]
    _check(lengths, response_lengths)
    padded = _padded_lengths(lengths, cp_size, pad_multiple)
    starts = np.concatenate([[0], np.cumsum(padded)])
    flat = np.zeros(starts[-1], dtype=np.int64)  # padding comes after its sequence: causal attention never sees its id
    number = np.full(starts[-1], -1, dtype=np.int64)
    for start, ids, before in zip(starts, tokens, np.cumsum([0, *lengths]), strict=False):
        flat[start : start + len(ids)] = ids
        number[start : start + len(ids)] = before + np.arange(len(ids))
    mine = _zigzag(starts, cp_rank, cp_size)
    local_of = np.full(starts[-1], -1, dtype=np.int64)
    local_of[mine] = np.arange(len(mine))
    position = np.arange(starts[-1]) - np.repeat(starts[:-1], padded)
    predicted = np.concatenate(
        [np.arange(s + n - r, s + n) for s, n, r in zip(starts, lengths, response_lengths, strict=False)]
    ).astype(np.int64)
    sample = np.repeat(np.arange(len(lengths)), response_lengths)
    row = local_of[predicted - 1]
    here = np.flatnonzero(row >= 0)
    return PackedBatch(
        input_ids=torch.from_numpy(flat[mine])[None],
        position_ids=torch.from_numpy(position[mine])[None],
        params=_params(torch.from_numpy(starts.astype(np.int32)), max(padded)),
        rows=torch.from_numpy(row[here]),
        targets=torch.from_numpy(flat[predicted[here]]),
        response_index=torch.from_numpy(here),
        sample_index=torch.from_numpy(sample[here]),
        tokens=torch.from_numpy(number[mine]),
        response_lengths=tuple(int(r) for r in response_lengths),
        cp_size=cp_size,
    )


def _check(lengths: Sequence[int], response_lengths: Sequence[int]) -> None:
    if not lengths or len(lengths) != len(response_lengths):
        raise ValueError(f"pack: {len(lengths)} samples, {len(response_lengths)} response lengths")
    for index, (length, response) in enumerate(zip(lengths, response_lengths, strict=True)):
        if not 0 <= response < length:
            raise ValueError(
                f"pack: sample {index} has {length} tokens and a response of {response}; a response needs at least one "
                "prompt token before it"
            )


def _padded_lengths(lengths: Sequence[int], cp_size: int, pad_multiple: int) -> list[int]:
    """Each a multiple of 2 C under context parallelism; the last grows until the sum is a multiple of
    ``pad_multiple``."""
    each = 2 * cp_size if cp_size > 1 else 1
    padded = [-(-length // each) * each for length in lengths]
    multiple = math.lcm(each, pad_multiple)
    padded[-1] += -sum(padded) % multiple
    return padded


def _zigzag(starts: np.ndarray, cp_rank: int, cp_size: int) -> np.ndarray:
    """Global indices of the tokens that a context-parallel rank holds, in its local order."""
    if cp_size == 1:
        return np.arange(starts[-1])
    pieces = []
    for start, end in itertools.pairwise(starts):
        chunk = (end - start) // (2 * cp_size)
        for number in (cp_rank, 2 * cp_size - 1 - cp_rank):
            pieces.append(np.arange(start + number * chunk, start + (number + 1) * chunk))
    return np.concatenate(pieces)


def _params(cu_seqlens: torch.Tensor, longest: int) -> PackedSeqParams:
    from megatron.core.packed_seq_params import PackedSeqParams

    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=int(longest),
        max_seqlen_kv=int(longest),
    )


# a micro-batch of the step --------------------------------------------------------------------------------------
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
