"""What a surrogate sees of one micro-batch, and the only place that knows about context parallelism.

Under context parallelism a rank holds some tokens of each sample. Token-wise formulas do not notice. Sample-wise ones
go through ``seq_sum``, which all-reduces one number per sample.

Masking is by selection and happens here, before any arithmetic: what lies under the mask is replaced by 0 on the way
in. Selecting only at the end would not do: ``exp(NaN)`` has a NaN derivative, and 0 * NaN is NaN in a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

#: [n] -> [n]: sum over the context-parallel ranks, differentiable; its backward sums gradients over the ranks too,
#: because every rank's loss reads the sum (``torch.distributed.nn.functional.all_reduce`` does, an all-reduce with an
#: identity backward does not)
Reduce = Callable[[torch.Tensor], torch.Tensor]


def trainable(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x with 0 where the mask is 0, in value and in gradient, whatever stands there. mask: [r]; x: [r, ...]."""
    shaped = mask.reshape(mask.shape + (1,) * (x.dim() - 1))
    return torch.where(shaped, x, torch.zeros((), dtype=x.dtype, device=x.device))


@dataclass(frozen=True)
class MicroView:
    """Implements :class:`vime_core.api.algorithm.TokenView`. Build it with :meth:`of`.

    Attributes:
        logp: [r] current log-probs, with gradient, 0 under the mask.
        old_logp: [r] the trainer's log-probs before the step, no gradient, 0 under the mask.
        mask: [r] bool.
        seg: [r] int64, the sample of each token, 0 .. n-1.
        counts: [n] trainable tokens of each sample over all context ranks.
        extra: name -> [r, ...] or [n, ...].
    """

    logp: torch.Tensor
    old_logp: torch.Tensor
    mask: torch.Tensor
    seg: torch.Tensor
    counts: torch.Tensor
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
    reduce: Reduce | None = None

    @classmethod
    def of(
        cls,
        *,
        logp: torch.Tensor,
        mask: torch.Tensor,
        seg: torch.Tensor,
        counts: torch.Tensor,
        old_logp: torch.Tensor | None = None,
        extra: Mapping[str, torch.Tensor] | None = None,
        extra_per_sample: Mapping[str, torch.Tensor] | None = None,
        reduce: Reduce | None = None,
    ) -> MicroView:
        """Select the trainable part of every token field. Without ``old_logp`` the current log-probs, detached, stand
        in for it: right when there is one optimizer step a rollout, where the ratio is then exactly 1.

        Raises:
            ValueError: a token field has another length than the mask.
        """
        tokens = {"logp": logp, "seg": seg, **({} if old_logp is None else {"old_logp": old_logp}), **(extra or {})}
        wrong = {name: len(x) for name, x in tokens.items() if len(x) != len(mask)}
        if wrong:
            raise ValueError(f"MicroView: {wrong} values for {len(mask)} tokens")
        old = logp if old_logp is None else old_logp
        return cls(
            logp=trainable(mask, logp),
            old_logp=trainable(mask, old.detach()).to(logp.dtype),
            mask=mask,
            seg=seg,
            counts=counts,
            extra={**{k: trainable(mask, x) for k, x in (extra or {}).items()}, **(extra_per_sample or {})},
            reduce=reduce,
        )

    def seq_sum(self, x: torch.Tensor) -> torch.Tensor:
        """[r] -> [n]: sum over each sample's trainable tokens, over all context ranks."""
        chosen = trainable(self.mask, x)
        local = chosen.new_zeros(len(self.counts)).index_add(0, self.seg, chosen)
        return local if self.reduce is None else self.reduce(local)

    def seq_mean(self, x: torch.Tensor) -> torch.Tensor:
        """[r] -> [n]: mean over each sample's trainable tokens (0 for a sample without any)."""
        return self.seq_sum(x) / self.counts.clamp(min=1).to(x.dtype)

    def broadcast_to_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """[n] -> [r]: the sample's value at each of its tokens."""
        return x.index_select(0, self.seg)
