"""Causal core attention on torch's scaled-dot-product kernel: packed rows, batches, and context parallelism.

All three become the same few kernel calls. Sequences of similar length go into one padded batch (a causal
query never sees the padding behind it), each batch is one kernel call, and index maps lead from the packed row to the
batches and back. Under context parallelism keys and values are gathered over the group; rank k of C holds chunks k and
2 C - 1 - k of each sequence, which only changes the index maps and asks for an explicit mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.enums import AttnMaskType

from vime_core.api import ConfigError

#: a batch may be padded to this multiple of the tokens in it
_SLACK = 1.25


@dataclass(frozen=True)
class AttentionBatch:
    """Sequences that share one kernel call.

    Attributes:
        queries: [n, Lq] rows of the local packed row; padding repeats the sequence's last row.
        keys: [n, Lk] rows of the gathered keys.
        mask: [n, 1, Lq, Lk] True where a query may look, or None for the plain causal kernel.
        rows, positions: the real queries: ``output[rows] = batched.flatten(0, 1)[positions]``.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor | None
    rows: torch.Tensor
    positions: torch.Tensor

    def to(self, device: torch.device) -> AttentionBatch:
        """The same maps where the queries and keys are."""
        mask = None if self.mask is None else self.mask.to(device)
        here = (self.queries.to(device), self.keys.to(device), mask)
        return AttentionBatch(*here, self.rows.to(device), self.positions.to(device))


def batch_sequences(starts: Sequence[int], cp_rank: int = 0, cp_size: int = 1) -> list[AttentionBatch]:
    """Batches for packed sequences.

    Args:
        starts: offsets of the whole sequences (``cu_seqlens``); each length divides by ``2 * cp_size`` when
            context parallelism is on.
    """
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    order = sorted((n for n in range(len(lengths)) if lengths[n]), key=lambda n: lengths[n])
    groups: list[list[int]] = []
    for number in order:
        members = [*groups[-1], number] if groups else [number]
        if groups and len(members) * lengths[number] <= _SLACK * sum(lengths[n] for n in members):
            groups[-1].append(number)
        else:
            groups.append([number])
    return [_batch_of(starts, group, cp_rank, cp_size) for group in groups]


def _batch_of(starts: Sequence[int], group: Sequence[int], cp_rank: int, cp_size: int) -> AttentionBatch:
    local_starts = [start // cp_size for start in starts]
    begin = torch.tensor([local_starts[n] for n in group])[:, None]
    length = torch.tensor([starts[n + 1] - starts[n] for n in group])[:, None]
    longest = int(length.max())
    at = torch.arange(longest // cp_size)[None]
    queries = begin + at.minimum(length // cp_size - 1)
    real = at < length // cp_size
    rows, positions = queries[real], torch.nonzero(real.flatten())[:, 0]
    if cp_size == 1:
        return AttentionBatch(queries, queries, None, rows, positions)
    position = torch.arange(longest)[None].minimum(length - 1)
    owner, offset = _owner(position, length, cp_size)
    keys = owner * local_starts[-1] + begin + offset
    query_position = _positions(at.minimum(length // cp_size - 1), length, cp_rank, cp_size)
    key_position = torch.where(torch.arange(longest)[None] < length, position, longest)
    mask = query_position[:, :, None] >= key_position[:, None, :]
    return AttentionBatch(queries, keys, mask[:, None], rows, positions)


def _owner(position: torch.Tensor, length: torch.Tensor, cp_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which context rank holds a position of a sequence, and at which offset in its share."""
    chunk = length // (2 * cp_size)
    number = position // chunk
    first = number < cp_size
    owner = torch.where(first, number, 2 * cp_size - 1 - number)
    return owner, position % chunk + torch.where(first, 0, chunk)


def _positions(offset: torch.Tensor, length: torch.Tensor, cp_rank: int, cp_size: int) -> torch.Tensor:
    """The inverse: positions in the sequence of the offsets in a rank's share."""
    chunk = length // (2 * cp_size)
    second = offset >= chunk
    number = torch.where(second, 2 * cp_size - 1 - cp_rank, cp_rank)
    return number * chunk + torch.where(second, offset - chunk, offset)


class CoreAttention(torch.nn.Module):
    """Causal self-attention of [s, b, heads, d] or packed [t, heads, d]; grouped queries; no dropout."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        if attn_mask_type not in (AttnMaskType.causal, AttnMaskType.padding_causal):
            raise ConfigError(f"attention mask {attn_mask_type}: the torch module spec is causal only")
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        if dropout or config.window_size is not None:
            raise ConfigError("attention dropout and sliding windows are not in the torch module spec")
        self.scale = softmax_scale
        self.cp_group = getattr(pg_collection, "cp", None) or parallel_state.get_context_parallel_group()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> torch.Tensor:
        """[t, heads * d] for packed rows, else [s, b, heads * d]. ``attention_mask`` is not read: always causal."""
        if attention_bias is not None:
            raise ConfigError("attention bias is not in the torch module spec")
        if packed_seq_params is not None:
            return self._packed(query, key, value, self._batches(packed_seq_params, query.device)).flatten(1)
        length, batch = query.shape[:2]
        q, k, v = (one.transpose(0, 1).flatten(0, 1) for one in (query, key, value))
        starts = [length * self.cp_group.size() * n for n in range(batch + 1)]
        batches = [group.to(q.device) for group in batch_sequences(starts, self.cp_group.rank(), self.cp_group.size())]
        out = self._packed(q, k, v, batches)
        return out.flatten(1).unflatten(0, (batch, length)).transpose(0, 1).contiguous()

    def _batches(self, params: PackedSeqParams, device: torch.device) -> list[AttentionBatch]:
        """They are the same in every layer, so they ride on the parameters of the micro-batch."""
        batches: list[AttentionBatch] | None = getattr(params, "vime_batches", None)
        if batches is None:
            starts = params.cu_seqlens_q if params.cu_seqlens_q_padded is None else params.cu_seqlens_q_padded
            planned = batch_sequences(starts.tolist(), self.cp_group.rank(), self.cp_group.size())
            batches = [group.to(device) for group in planned]
            params.vime_batches = batches
        return batches

    def _packed(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batches: Sequence[AttentionBatch]
    ) -> torch.Tensor:
        """[t, heads, d] each -> [t, heads, d]."""
        if self.cp_group.size() > 1:
            k, v = (gather_from_sequence_parallel_region(one, group=self.cp_group) for one in (k, v))
        pieces = [self._kernel(q, k, v, group) for group in batches]
        rows = torch.cat([group.rows for group in batches])
        inverse = torch.empty_like(rows)
        inverse[rows] = torch.arange(len(rows), device=rows.device)
        return torch.cat(pieces).index_select(0, inverse)

    def _kernel(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        dtype = q.dtype
        q, k, v = (
            one.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2)
            for one, index in ((q, batch.queries), (k, batch.keys), (v, batch.keys))
        )
        if q.device.type == "cpu":
            # The CPU kernel in bfloat16 takes up to five times as long going backward as in float32 (short sequences).
            q, k, v = q.float(), k.float(), v.float()
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=batch.mask, is_causal=batch.mask is None, scale=self.scale, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1).index_select(0, batch.positions).to(dtype)
