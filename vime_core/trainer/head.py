"""Forward through the decoder, and the output layer only where a response token is predicted.

``forward_step`` gives the schedule hidden states instead of logits; in the loss closure ``response_logprobs`` applies the
output layer to the rows that predict response tokens, so prompt tokens cost no vocabulary-sized work.

    def step(iterator, chunk):
        packed = next(iterator)
        output = forward_step(chunk, packed)
        def loss(output):
            out = response_logprobs(chunk, output, packed, temperature=1.0, chunk_size=1024, with_entropy=False)
            ...
            return loss_sum, num_tokens, metrics
        return output, loss
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from vime_core.trainer.packed import PackedBatch


@dataclass(frozen=True)
class ResponseLogprobs:
    """l response tokens that this rank predicts, in the order of ``packed.response_index``.

    Attributes:
        logp: [l] float32, natural log, with gradient.
        entropy: [l] float32 nats, with gradient, or None.
    """

    logp: torch.Tensor
    entropy: torch.Tensor | None


def forward_step(model_chunk: torch.nn.Module, packed: PackedBatch) -> torch.Tensor:
    """Run one chunk. Returns what the pipeline schedule passes on: hidden states for the next stage, or, on the last
    stage, the final hidden states [1, t (divided by TP under sequence parallelism), h]."""
    raise NotImplementedError


def response_logprobs(
    model_chunk: torch.nn.Module,
    output_tensor: torch.Tensor,
    packed: PackedBatch,
    temperature: float = 1.0,
    chunk_size: int = 1024,
    with_entropy: bool = False,
) -> ResponseLogprobs:
    """Log-probs of this rank's response tokens under ``softmax(logits / temperature)``; last stage only. The same on all
    tensor-parallel ranks. A batch without local response tokens gives empty tensors that still reach the graph."""
    raise NotImplementedError
