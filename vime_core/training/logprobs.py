"""Log-probabilities and entropies of given tokens from hidden states, without ever holding all logits.

For each chunk of rows the forward pass makes that chunk's logits, keeps the log-sum-exp (and entropy) of each row, and
drops them; the backward pass makes them again. The vocabulary may be cut over tensor-parallel ranks: three numbers a
row (maximum, sum of exponentials, target logit; a fourth for the entropy) are reduced instead of the logits. Products
are in the model's dtype, everything after them in float32.

With z = logits / T, p = softmax(z), L = logsumexp(z):
    logp = z[target] - L            d logp / d z = onehot(target) - p
    H = L - sum_j p_j z_j           d H / d z = -p * (log p + H)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from vime_core.training.packed import PackedBatch

#: logit of a padded vocabulary entry: its probability is an exact zero and products with it stay finite
_NEVER = -1e20


@dataclass(frozen=True)
class VocabShard:
    """The vocabulary entries that this rank holds: rows ``start .. start + size - 1`` of which the first ``valid`` are
    real (the others pad the vocabulary). ``group`` is the tensor-parallel group, or None where one rank holds
    everything."""

    start: int
    valid: int
    group: dist.ProcessGroup | None = None

    def reduce(self, value: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        if self.group is not None:
            dist.all_reduce(value, op, group=self.group)
        return value


@dataclass(frozen=True)
class ChunkedSoftmax:
    """How log-probs come out of logits.

    Attributes:
        temperature: divides the logits; above 0.
        chunk_size: rows whose float32 logits are held at a time; below 1: all.
        with_entropy: the entropy of each row, too.
    """

    temperature: float = 1.0
    chunk_size: int = 1024
    with_entropy: bool = False

    def chunks(self, count: int) -> list[slice]:
        """The rows 0 .. count - 1, a chunk at a time."""
        size = self.chunk_size if self.chunk_size > 0 else max(count, 1)
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]


#: log-probs at temperature 1, without entropies
PLAIN_SOFTMAX = ChunkedSoftmax()


def token_logprobs(
    rows: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    shard: VocabShard,
    softmax: ChunkedSoftmax = PLAIN_SOFTMAX,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs (and entropies) of ``targets`` under ``softmax(rows @ weight.T / temperature)``.

    The gradient of ``rows`` is this vocabulary shard's part: sum it over the tensor-parallel group (Megatron's
    ``copy_to_tensor_model_parallel_region`` or ``gather_from_sequence_parallel_region`` before this call do).

    Args:
        rows: [r, h] hidden states, the same on all tensor-parallel ranks.
        weight: [v, h] this rank's rows of the output layer.
        targets: [r] int64 ids, or [r, k]: several of each row.

    Returns:
        (float32 of the targets' shape, [r] float32 or None), natural log; the same on all tensor-parallel ranks.
    """
    if softmax.temperature <= 0:
        raise ValueError(f"temperature {softmax.temperature}: log-probs need a temperature above 0")
    named = targets[:, None] if targets.dim() == 1 else targets
    logp, entropy = _TokenLogprobs.apply(rows, weight, named, shard, softmax)
    return logp.reshape(targets.shape), entropy if softmax.with_entropy else None


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        shard: VocabShard,
        softmax: ChunkedSoftmax,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lse, entropy = (torch.empty(len(rows), dtype=torch.float32, device=rows.device) for _ in range(2))
        logp = torch.empty(targets.shape, dtype=torch.float32, device=rows.device)
        width = targets.shape[1]
        for at in softmax.chunks(len(rows)):
            logits = _logits(rows[at], weight, shard, softmax.temperature)
            here, column = _columns(targets[at], shard)
            picked = logits.gather(1, column).masked_fill_(~here, 0.0).T
            peak = shard.reduce(logits.amax(dim=1), dist.ReduceOp.MAX)
            if softmax.with_entropy:
                scaled = logits.sub(peak[:, None]).exp_()
                sums = torch.cat([picked, scaled.sum(1)[None], torch.linalg.vecdot(scaled, logits)[None]])
                del scaled
            else:
                sums = torch.cat([picked, logits.sub_(peak[:, None]).exp_().sum(1)[None]])
            reduced = shard.reduce(sums)
            total = reduced[width]
            lse[at] = peak + total.log()
            logp[at] = reduced[:width].T - lse[at, None]
            if softmax.with_entropy:
                entropy[at] = lse[at] - reduced[width + 1] / total
            del logits  # before the next chunk's are made
        ctx.save_for_backward(rows, weight, targets, lse, entropy)
        ctx.shard, ctx.softmax = shard, softmax
        if not softmax.with_entropy:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        grad_logp, grad_entropy = grads
        rows, weight, targets, lse, entropy = ctx.saved_tensors
        need_rows, need_weight = ctx.needs_input_grad[:2]
        grad_rows = torch.zeros_like(rows) if need_rows else None
        chunks = ctx.softmax.chunks(len(rows))
        # Summed in float32 over several chunks; the model's dtype would round once a chunk.
        wide = torch.float32 if len(chunks) > 1 else weight.dtype
        grad_weight = torch.zeros_like(weight, dtype=wide) if need_weight else None
        for at in chunks:
            logits = _logits(rows[at], weight, ctx.shard, ctx.softmax.temperature)
            log_p = logits.sub_(lse[at, None])
            slope = log_p.exp()
            if ctx.softmax.with_entropy:
                pull = log_p.add_(entropy[at, None]).mul_(grad_entropy[at, None]).add_(grad_logp[at].sum(1)[:, None])
                slope.mul_(pull).neg_()
            else:
                slope.mul_(grad_logp[at].sum(1)[:, None]).neg_()
            here, column = _columns(targets[at], ctx.shard)
            slope.scatter_add_(1, column, grad_logp[at] * here)
            slope = slope.div_(ctx.softmax.temperature).to(rows.dtype)
            if grad_rows is not None:
                grad_rows[at] = slope @ weight
            if grad_weight is not None:
                _add_product(grad_weight, slope, rows[at])
            del logits, log_p, slope  # before the next chunk's are made
        cast = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_rows, cast, None, None, None


def _add_product(total: torch.Tensor, slope: torch.Tensor, rows: torch.Tensor) -> None:
    """``total += slope.T @ rows``, without a copy of the product where the dtypes allow it."""
    if total.dtype == rows.dtype:
        total.addmm_(slope.T, rows)
    else:
        total.add_(slope.T @ rows)


def _logits(rows: torch.Tensor, weight: torch.Tensor, shard: VocabShard, temperature: float) -> torch.Tensor:
    """[c, v] float32, divided by the temperature, padding masked; a fresh tensor."""
    logits = (rows @ weight.T).float()
    if temperature != 1.0:
        logits.div_(temperature)
    if shard.valid < weight.shape[0]:
        logits[:, shard.valid :] = _NEVER
    return logits


def _columns(targets: torch.Tensor, shard: VocabShard) -> tuple[torch.Tensor, torch.Tensor]:
    """Which targets this shard holds, and their column (0 for the others)."""
    column = targets - shard.start
    here = (column >= 0) & (column < shard.valid)
    return here, column.masked_fill(~here, 0)


# of a micro-batch ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ResponseLogprobs:
    """l response tokens that this rank predicts, in the order of ``packed.response_index``.

    Attributes:
        logp: [l] float32, natural log, with gradient.
        entropy: [l] float32 nats, with gradient, or None.
        topk_logprobs: [l, k] float32 log-probs of further tokens at the same positions, with gradient, or None.
    """

    logp: torch.Tensor
    entropy: torch.Tensor | None
    topk_logprobs: torch.Tensor | None = None


def response_logprobs(
    model_chunk: Any,
    output_tensor: torch.Tensor,
    packed: PackedBatch,
    softmax: ChunkedSoftmax = PLAIN_SOFTMAX,
    topk_ids: torch.Tensor | None = None,
) -> ResponseLogprobs:
    """Log-probs of this rank's response tokens under ``softmax``; last stage only. The same on
    all tensor-parallel ranks. A batch without local response tokens gives empty tensors that still reach the graph.
    ``topk_ids`` [l, k] int64 are ids of further tokens, in the order of ``packed.response_index``."""
    from megatron.core.utils import unwrap_model

    model = unwrap_model(model_chunk)
    layer = model.output_layer
    weight = model.shared_embedding_or_output_weight() if model.share_embeddings_and_output_weights else layer.weight
    rows = _predicting_rows(output_tensor, packed, layer).to(weight.dtype)
    group = layer.tp_group if layer.tp_group.size() > 1 else None
    start = layer.tp_group.rank() * weight.shape[0]
    valid = min(max(layer.vocab_size - start, 0), weight.shape[0])
    targets = packed.targets if topk_ids is None else torch.cat([packed.targets[:, None], topk_ids], dim=1)
    logp, entropy = token_logprobs(rows, weight, targets, VocabShard(start, valid, group), softmax)
    if topk_ids is None:
        return ResponseLogprobs(logp, entropy)
    return ResponseLogprobs(logp[:, 0], entropy, logp[:, 1:])


def _predicting_rows(output_tensor: torch.Tensor, packed: PackedBatch, layer: Any) -> torch.Tensor:
    """[1, t, h] -> [l, h], such that gradients come back summed over the vocabulary's shards."""
    from megatron.core.tensor_parallel import mappings

    hidden = output_tensor[0]
    if layer.sequence_parallel:
        return mappings.gather_from_sequence_parallel_region(hidden, group=layer.tp_group).index_select(0, packed.rows)
    return mappings.copy_to_tensor_model_parallel_region(hidden.index_select(0, packed.rows), group=layer.tp_group)
