"""The output layer, put off until it is wanted, and then only where a response token is predicted.

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
from typing import TYPE_CHECKING, Any, Protocol

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear

if TYPE_CHECKING:
    pass


class OutputLayer(Protocol):
    """What a model has behind its last layer, and how it gets there.

    Attributes:
        unused: tensors of a Hugging Face folder that a model with it has no place for.
        optional: those that the folder may lack.
    """

    unused: frozenset[str]
    optional: frozenset[str]

    def adapt(self, bridge: Any) -> None:
        """Change the bridge before any chunk is built from it."""

    def install(self, model: Any, bridge: Any) -> None:
        """Change a GPTModel of the last stage, before it is wrapped."""

    def load(self, bridge: Any, models: Sequence[Any], folder: str) -> None:
        """Weights of body and output layer from a Hugging Face folder. Collective, without gradient."""


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

    unused: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    def adapt(self, bridge: Any) -> None:
        pass

    def install(self, model: Any, bridge: Any) -> None:
        defer_output_layer(model, bridge.hf_config.vocab_size)

    def load(self, bridge: Any, models: Sequence[Any], folder: str) -> None:
        bridge.load_weights(list(models), folder)
