"""A critic's head: one linear from a hidden state to a number, where a language model has its output layer.

The value of the state before a response token comes from the row that would predict the token, as its log-prob does.
The head is whole on every tensor-parallel rank: they compute the same values, so no gradient needs adding up, except
under sequence parallelism, where a rank has the hidden states of some rows only. There each rank computes the values of
its own rows, one number each is gathered, and Megatron adds the ranks' shares of the head's gradient, as it does for
layer norms.

It starts from zeros. An untrained critic then says 0 and the first advantages are the returns themselves, free of a
random head's noise; and there is nothing to draw, so it is alike on all ranks in every layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.utils import unwrap_model

from vime_core.api import CheckpointError

if TYPE_CHECKING:
    from vime_core.training.packed import PackedBatch

#: the head's name in a Hugging Face folder: that of transformers' sequence classifiers with one label
HF_NAME = "score.weight"


class ValueHead(torch.nn.Module):
    """weight: [1, h] in the model's type; the arithmetic is in float32."""

    def __init__(self, hidden_size: int, dtype: torch.dtype, sequence_parallel: bool, tp_group: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, hidden_size, dtype=dtype))
        self.weight.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]  # Megatron's mark
        self.sequence_parallel, self.tp_group = sequence_parallel, tp_group

    def forward(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """hidden: [t (divided by TP under sequence parallelism), h]; rows: [l] of the whole t. Returns [l] float32."""
        if not self.sequence_parallel:
            return self._values(hidden.index_select(0, rows))
        # Every rank goes on to compute the same loss from all values, so each takes back the gradient of its own rows.
        whole = gather_from_sequence_parallel_region(
            self._values(hidden), tensor_parallel_output_grad=False, group=self.tp_group
        )
        return whole.index_select(0, rows)

    def _values(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden.float(), self.weight.float())[:, 0]


class _HandThrough(torch.nn.Module):
    """Stands where the output layer was: the model's output is its final hidden states."""

    def forward(self, hidden: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return hidden, None


class CriticOutput:
    """The output layer of a critic's :class:`~vime_core.training.model.MegatronModel`."""

    unused: frozenset[str] = frozenset({"lm_head.weight", "score.bias"})  # the latter is refused in loading
    optional: frozenset[str] = frozenset({HF_NAME})

    def adapt(self, bridge: Any) -> None:
        """Nothing is tied to the embedding: the last stage needs no copy of it, nor its gradient."""
        bridge.hf_config.tie_word_embeddings = False
        bridge._DIRECT_MAPPING = {**bridge._DIRECT_MAPPING, "value_head.weight": HF_NAME}

    def install(self, model: Any, bridge: Any) -> None:
        config = model.config
        model.output_layer = _HandThrough()
        model.value_head = ValueHead(
            config.hidden_size, config.params_dtype, config.sequence_parallel, model.pg_collection.tp
        )

    def load(self, bridge: Any, models: Sequence[Any], folder: str) -> None:
        """The body, and the head where the folder has one; else the head stays as it is."""
        with _without_heads(models) as heads:
            bridge.load_weights(list(models), folder)
        files = bridge._get_safetensor_io(folder)
        names = set(files.load_hf_weight_names())
        if "score.bias" in names:
            raise CheckpointError(f"{folder}: its score layer has a bias; a critic's head has none")
        if HF_NAME in names:
            loaded = files.load_one_hf_weight(HF_NAME)
            for head in heads:
                _put(head.weight, loaded, folder)


def _put(weight: torch.Tensor, loaded: torch.Tensor, folder: str) -> None:
    if loaded.shape != weight.shape:
        raise CheckpointError(
            f"{folder}: {HF_NAME} has shape {tuple(loaded.shape)}, a critic's head has {tuple(weight.shape)}"
        )
    weight.copy_(loaded)


@contextmanager
def _without_heads(models: Sequence[Any]) -> Iterator[list[ValueHead]]:
    """The models as the bridge knows them: without the head, which is not in every folder."""
    owners = [model for model in models if model.post_process]
    heads = [model.value_head for model in owners]
    try:
        for model in owners:
            model.value_head = None
        yield heads
    finally:
        for model, head in zip(owners, heads, strict=True):
            model.value_head = head


def response_values(model_chunk: Any, hidden: torch.Tensor, packed: PackedBatch) -> torch.Tensor:
    """[l] float32, with gradient: the value of the state before each response token that this rank predicts, in the
    order of ``packed.response_index``; last stage only, the same on all tensor-parallel ranks. Has no temperature."""
    values: torch.Tensor = unwrap_model(model_chunk).value_head(hidden[0], packed.rows)
    return values
