"""One weight per token, by the name of the aggregation.

Every way to average a loss is ``sum over tokens of weight * loss`` with weights that are fixed for the optimizer step:
they are counted over all samples of the step, on every rank alike, before anything is packed. A micro-batch then adds a
plain sum, so neither packing nor the number of ranks can change the loss. Nothing downstream may divide again.

The names and who uses them: ``rollout_mean`` is slime's and vime's default, ``token_mean`` verl's and DAPO's,
``fixed_length`` Dr. GRPO's, ``prompt_mean`` the other reading of DAPO's text (SkyRL).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from vime_core.api import ConfigError


@dataclass(frozen=True)
class StepTokens:
    """The samples and tokens of one optimizer step, from which weights have their denominators.

    Attributes:
        mask: [R] bool trainable tokens. seg: [R] int64 sample of each token.
        rollout, group: [N] ids.
        selected: [N] bool samples of this optimizer step that count; an empty one counts in N.
        length: tokens that ``fixed_length`` divides by; for that only.
    """

    mask: torch.Tensor
    seg: torch.Tensor
    rollout: torch.Tensor
    group: torch.Tensor
    selected: torch.Tensor
    length: int | None = None

    @property
    def chosen(self) -> torch.Tensor:
        """[R] bool: trainable tokens of selected samples."""
        return self.mask & self.selected[self.seg]

    def tokens_by(self, ids: torch.Tensor) -> torch.Tensor:
        """[R]: trainable tokens that share this token's id. ids: [N]."""
        values, position = torch.unique(ids, return_inverse=True)
        mine = position[self.seg]
        return torch.zeros(len(values), dtype=torch.float64).index_add_(0, mine, self.chosen.double())[mine]

    def distinct(self, ids: torch.Tensor) -> int:
        """How many ids the selected samples have."""
        return len(torch.unique(ids[self.selected]))

    @property
    def samples(self) -> int:
        return int(self.selected.sum())

    @property
    def sample_ids(self) -> torch.Tensor:
        return torch.arange(len(self.selected))


def sample_mean(c: StepTokens) -> torch.Tensor:
    """Mean over samples of each sample's token mean; an empty sample adds 0: 1 / (N c_i)."""
    return 1 / (c.samples * c.tokens_by(c.sample_ids))


def sample_mean_nonempty(c: StepTokens) -> torch.Tensor:
    """The same over the samples that have a trainable token."""
    return 1 / (len(torch.unique(c.seg[c.chosen])) * c.tokens_by(c.sample_ids))


def sample_sum_mean(c: StepTokens) -> torch.Tensor:
    """Mean over samples of each sample's token sum: 1 / N."""
    return torch.full(c.seg.shape, 1 / max(c.samples, 1), dtype=torch.float64)


def rollout_mean(c: StepTokens) -> torch.Tensor:
    """Mean over rollouts of the rollout's token mean, all its samples together: 1 / (N_r C_r)."""
    return 1 / (c.distinct(c.rollout) * c.tokens_by(c.rollout))


def token_mean(c: StepTokens) -> torch.Tensor:
    """All trainable tokens of the step alike: 1 / C."""
    return 1 / c.tokens_by(torch.zeros_like(c.sample_ids))


def fixed_length(c: StepTokens) -> torch.Tensor:
    """Token sum over a constant length, mean over samples (Dr. GRPO): 1 / (N L)."""
    if not c.length or c.length < 0:
        raise ConfigError("aggregation fixed_length needs a length: set rollout_max_response_len")
    return sample_sum_mean(c) / c.length


def prompt_mean(c: StepTokens) -> torch.Tensor:
    """Token mean within a prompt's group, mean over groups: 1 / (G C_g)."""
    return 1 / (c.distinct(c.group) * c.tokens_by(c.group))


#: name -> weights [R] float64; only values at trainable tokens are used
AGGREGATIONS: Mapping[str, Callable[[StepTokens], torch.Tensor]] = MappingProxyType(
    {
        "sample_mean": sample_mean,
        "rollout_mean": rollout_mean,
        "token_mean": token_mean,
        "fixed_length": fixed_length,
        "prompt_mean": prompt_mean,
        "sample_mean_nonempty": sample_mean_nonempty,
        "sample_sum_mean": sample_sum_mean,
    }
)


def check_aggregation(name: str) -> str:
    """The name, if it is one.

    Raises:
        ConfigError: unknown name.
    """
    if name not in AGGREGATIONS:
        near = difflib.get_close_matches(name, AGGREGATIONS, n=1, cutoff=0)[0]
        raise ConfigError(f"unknown aggregation {name!r}; nearest: {near!r} (all: {', '.join(AGGREGATIONS)})")
    return name


def token_weights(name: str, step: StepTokens) -> torch.Tensor:
    """[R] float64 weights of one optimizer step, 0 at tokens that are not trained.

    Raises:
        ConfigError: unknown name, or ``fixed_length`` without a length.
    """
    weights = AGGREGATIONS[check_aggregation(name)](step)
    return torch.where(step.chosen, weights, torch.zeros((), dtype=torch.float64))
