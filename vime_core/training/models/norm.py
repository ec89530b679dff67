"""RMSNorm in plain torch, alone and fused in front of a column-parallel linear, under Transformer Engine's names.

Under sequence parallelism each tensor-parallel rank normalises its own rows, so the weight's gradient is a partial sum:
the mark ``sequence_parallel`` makes Megatron add it up over the tensor-parallel group.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer import TransformerConfig

from vime_core.api import ConfigError


def _weight(size: int, config: TransformerConfig) -> torch.nn.Parameter:
    weight = torch.nn.Parameter(torch.ones(size, dtype=config.params_dtype))
    weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return weight


def _require_rms(config: TransformerConfig) -> None:
    if config.normalization != "RMSNorm" or config.layernorm_zero_centered_gamma:
        raise ConfigError(f"normalization {config.normalization!r}: the torch module spec has RMSNorm only")


class Norm(torch.nn.Module):
    """RMSNorm over the last axis; parameter ``weight``."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float | None = None, **_: Any) -> None:
        super().__init__()
        _require_rms(config)
        self.eps = config.layernorm_epsilon if eps is None else eps
        self.weight = _weight(hidden_size, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class NormColumnParallelLinear(ColumnParallelLinear):
    """RMSNorm, then a column-parallel linear; parameters ``layer_norm_weight``, ``weight``, ``bias``."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **more: Any) -> None:
        super().__init__(input_size, output_size, config=config, **more)
        _require_rms(config)
        self.layer_norm_weight = _weight(input_size, config)
        self.eps = config.layernorm_epsilon

    def forward(self, x: torch.Tensor, *args: Any, **more: Any) -> Any:
        normed = F.rms_norm(x, (x.shape[-1],), self.layer_norm_weight, self.eps)
        return super().forward(normed, *args, **more)
