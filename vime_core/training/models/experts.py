"""Grouped linears of mixture-of-experts layers in plain torch, with Transformer Engine's names (``weight0`` and on).

Megatron's grouped MLP and token dispatcher do the rest: under expert tensor parallelism the dispatcher gathers tokens
before and reduces outputs after, so a column shard and a row shard only multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from megatron.core.utils import divide

from vime_core.api import ConfigError


class GroupedLinear(torch.nn.Module):
    """One weight an expert of this rank, [out, in] each. Expert tensor parallelism cuts the axis ``partition_dim``."""

    partition_dim: int

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: TransformerConfig,
        init_method: Callable[[torch.Tensor], Any],
        bias: bool = False,
        is_expert: bool = True,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        if bias:
            raise ConfigError("experts with a bias are not in the torch module spec")
        self.num_gemms = num_gemms
        parts = pg_collection.expt_tp.size()
        shape = [output_size, input_size]
        shape[self.partition_dim] = divide(shape[self.partition_dim], parts)
        # Where experts are divided as the dense layers are, their gradients are reduced with those; else over the ranks
        # that hold the same experts.
        dense = config.expert_model_parallel_size == 1 and parts == config.tensor_model_parallel_size
        for number in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
            if config.perform_initialization:
                init_method(weight.data)
            set_tensor_model_parallel_attributes(weight, True, self.partition_dim, 1)
            weight.allreduce = dense  # type: ignore[attr-defined]
            self.register_parameter(f"weight{number}", weight)

    def forward(self, x: torch.Tensor, tokens_per_expert: Sequence[int]) -> tuple[torch.Tensor, None]:
        """[T, in], rows sorted by expert -> [T, out]. An expert without tokens takes part with zero rows, so that its
        gradient is zero and not absent."""
        parts = torch.split(x, list(tokens_per_expert))
        weights = [getattr(self, f"weight{number}") for number in range(self.num_gemms)]
        return torch.cat([F.linear(part, weight) for part, weight in zip(parts, weights, strict=True)]), None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> dict[str, Any]:
        axes = {f"weight{number}": self.partition_dim for number in range(self.num_gemms)}
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True), prefix, axes, sharded_offsets
        )


class ColumnGroupedLinear(GroupedLinear):
    partition_dim = 0


class RowGroupedLinear(GroupedLinear):
    partition_dim = 1
