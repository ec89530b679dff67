"""The five-stage contract of an algorithm. The trainer reads these members and never a name.

Total loss = sum over trainable tokens of ``w * correction * surrogate``, plus the trainer's own
``w * kl_loss_coef * KL`` and ``- w * entropy_coef * H``. ``w`` comes from the aggregation's name, counted over the
whole step before anything is packed, so loss and gradient do not depend on packing, order, data-parallel or
context-parallel size.

Shapes: N samples of one step, R response tokens of them end to end (no padding).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from vime_core.batch import StepBatch

#: an algorithm's options by name: its defaults, overlaid with the user's
Options = Mapping[str, Any]


@dataclass(frozen=True)
class AlgorithmInfo:
    """What a reader wants to know of an algorithm: ``vime algorithms info NAME`` prints it.

    Attributes:
        title: its full name.
        source: paper (authors, year, arXiv id), or where else the formula is from.
        advantage, loss: the formulas, one line of plain text each.
        notes: what to mind, where peers differ.
    """

    title: str
    source: str
    advantage: str
    loss: str
    notes: Sequence[str] = ()


class Advantages(NamedTuple):
    """What ``advantages`` returns where a critic is trained, too. Both [R] float32, no gradient."""

    advantage: torch.Tensor
    returns: torch.Tensor


class TokenView(Protocol):
    """Some whole samples, as the surrogate sees them in one micro-batch. r tokens, n samples; local under context
    parallelism, where the three reductions hide the other ranks."""

    @property
    def logp(self) -> torch.Tensor:
        """[r] float32, with gradient; 0 under the mask."""

    @property
    def old_logp(self) -> torch.Tensor:
        """[r] float32; 0 under the mask."""

    @property
    def mask(self) -> torch.Tensor:
        """[r] bool."""

    @property
    def extra(self) -> Mapping[str, torch.Tensor]:
        """Further columns that the algorithm needs: [r], 0 under the mask, or [n]."""

    def seq_sum(self, x: torch.Tensor) -> torch.Tensor:
        """[r] -> [n]: sum over each sample's trainable tokens, over all context ranks."""

    def seq_mean(self, x: torch.Tensor) -> torch.Tensor:
        """[r] -> [n]: mean over each sample's trainable tokens (0 for a sample without any)."""

    def broadcast_to_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """[n] -> [r]: the sample's value at each of its tokens."""


class Algorithm(abc.ABC):
    """Pure functions over a frozen batch, of which each stage gets a copy; one that writes into it is refused.

    Class attributes:
        name: registered name.
        needs: subset of {"old_logp", "rollout_logp", "ref_logp", "teacher_logp", "values", "token_reward", "entropy",
            "reward"} and names of the batch's extra columns, whatever the options are; see :meth:`required`.
        aggregate: default aggregation ("sample_mean", "rollout_mean", "token_mean", "fixed_length", "prompt_mean").
        defaults: option name -> default. An option that is not here is an error when a user sets it.
        recompute_old_logprobs: advantages or correction read ``old_logp``, so it is computed before them even where the
            surrogate alone could do with the current log-probs (one optimizer step).
        group_based: compares samples of a group, so one sample a prompt cannot teach it anything.
    """

    name: ClassVar[str]
    info: ClassVar[AlgorithmInfo | None] = None
    needs: ClassVar[frozenset[str]] = frozenset()
    aggregate: ClassVar[str] = "rollout_mean"
    defaults: ClassVar[Mapping[str, Any]] = {}
    recompute_old_logprobs: ClassVar[bool] = False
    group_based: ClassVar[bool] = False

    def violations(self, options: Options) -> Sequence[str]:
        """What is wrong with the values of the options, one line each; asked before anything starts."""
        return ()

    def required(self, options: Options) -> frozenset[str]:
        """What the batch must have under these options (``ref_logp`` only where ``kl_coef`` is not 0, say)."""
        return self.needs

    def select(self, batch: StepBatch, options: Options) -> torch.Tensor:
        """[N] bool: which samples count at all (before denominators are counted)."""
        return batch.all_samples()

    @abc.abstractmethod
    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor | Advantages:
        """[R] float32 advantages (with the critic's targets, if it needs ``values``); whole step, no gradient."""

    def correction(self, batch: StepBatch, options: Options) -> tuple[torch.Tensor | None, Mapping[str, torch.Tensor]]:
        """([R] weights or None for all ones, metrics [R]); once a step, no gradient."""
        return None, {}

    @abc.abstractmethod
    def surrogate(
        self, view: TokenView, advantage: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """([r] loss with gradient, metrics [r]); each micro-batch; no in-place writes."""
