"""Supervised fine-tuning: the negative log-likelihood of given tokens, through the same five stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from vime_core.api import Algorithm, AlgorithmInfo, Options, TokenView

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


class Sft(Algorithm):
    """No reward, no sampler, no options. The loss mask of the data says which tokens are targets."""

    name = "sft"
    info = AlgorithmInfo(
        title="Supervised fine-tuning",
        source="maximum likelihood",
        advantage="1",
        loss="-logp",
        notes=("The loss mask of the data says which tokens are targets.",),
    )
    aggregate = "rollout_mean"

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        return torch.ones(batch.response_tokens)

    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -view.logp, {"nll": -view.logp}
