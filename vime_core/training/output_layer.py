"""Forward through the decoder, and the output layer only where a response token is predicted.

The model's output layer becomes a :class:`DeferredOutputLayer`, which hands hidden states through instead of making
logits. So ``forward_step`` gives the pipeline schedule hidden states on every stage, and in the loss closure
``response_logprobs`` applies the output layer to the rows that predict response tokens:
prompt tokens cost no vocabulary-sized work.

    def step(iterator, chunk):
        packed = next(iterator)
        output = forward_step(chunk, packed)
        def loss(output):
            out = response_logprobs(chunk, output, packed, ChunkedSoftmax(temperature=0.9))
            ...
            return loss_sum, num_tokens, metrics
        return output, loss
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.utils import unwrap_model

from vime_core.training.logprobs import PLAIN_SOFTMAX, ChunkedSoftmax, VocabShard, token_logprobs

if TYPE_CHECKING:
    from vime_core.training.packed import PackedBatch


class OutputLayer(Protocol):
    """What a model has behind its last layer, and how it gets there."""

    def adapt(self, bridge: Any) -> None:
        """Change the bridge before any chunk is built from it."""

    def install(self, model: Any, bridge: Any) -> None:
        """Change a GPTModel of the last stage, before it is wrapped."""

    def load(self, bridge: Any, models: Sequence[Any], folder: str) -> None:
        """Weights of body and output layer from a Hugging Face folder. Collective, without gradient."""


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


class DeferredOutputLayer(ColumnParallelLinear):
    """A column-parallel linear that waits: its forward returns its input."""

    vocab_size: int

    def forward(self, input_: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        return input_, None


def defer_output_layer(model: Any, vocab_size: int) -> None:
    """Defer the output layer of a last-stage GPTModel. The layer keeps its class's state, parameters and their
    names; only its forward changes, so checkpoints, tying and gradients are Megatron's own.

    Args:
        vocab_size: real entries of the vocabulary; the rest of the layer's rows are padding.
    """
    model.output_layer.__class__ = DeferredOutputLayer
    model.output_layer.vocab_size = vocab_size


class LanguageModelOutput:
    """A language model's own output layer, deferred."""

    def adapt(self, bridge: Any) -> None:
        pass

    def install(self, model: Any, bridge: Any) -> None:
        defer_output_layer(model, bridge.hf_config.vocab_size)

    def load(self, bridge: Any, models: Sequence[Any], folder: str) -> None:
        bridge.load_weights(list(models), folder)


def forward_step(model_chunk: Any, packed: PackedBatch) -> torch.Tensor:
    """Run one chunk. Returns what the pipeline schedule passes on: hidden states for the next stage, or, on the last
    stage, the final hidden states [1, t (divided by TP under sequence parallelism), h]."""
    output: torch.Tensor = model_chunk(packed.input_ids, packed.position_ids, None, packed_seq_params=packed.params)
    return output


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
    hidden = output_tensor[0]
    if layer.sequence_parallel:
        return gather_from_sequence_parallel_region(hidden, group=layer.tp_group).index_select(0, packed.rows)
    return copy_to_tensor_model_parallel_region(hidden.index_select(0, packed.rows), group=layer.tp_group)
