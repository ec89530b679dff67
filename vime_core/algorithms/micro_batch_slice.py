"""A rank's part of a step for one micro-batch: the whole-step columns, cut out at its tokens; and what a surrogate sees
of it, the only place that knows about context parallelism.

Under context parallelism a rank holds some tokens of each sample. Token-wise formulas do not notice. Sample-wise ones
go through ``seq_sum``, which all-reduces one number per sample.

Masking is by selection and happens here, before any arithmetic: what lies under the mask is replaced by 0 on the way
in. Selecting only at the end would not do: ``exp(NaN)`` has a NaN derivative, and 0 * NaN is NaN in a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from vime_core.algorithms.common import trainable
from vime_core.algorithms.prepare import Prepared

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


#: [n] -> [n]: sum over the context-parallel ranks, differentiable; its backward sums gradients over the ranks too,
#: because every rank's loss reads the sum (``torch.distributed.nn.functional.all_reduce`` does, an all-reduce with an
#: identity backward does not)
Reduce = Callable[[torch.Tensor], torch.Tensor]


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


@dataclass(frozen=True)
class MicroBatchSlice:
    """n samples, r of their response tokens (all of them, or a context-parallel rank's).

    Attributes:
        index: [r] where the tokens stand on the step's response axis.
        seg: [r] sample of each token, 0 .. n-1. counts: [n] trainable tokens over all context ranks.
        mask, advantage, weight, correction, old_logp: [r], as in :class:`Prepared`; None where there is none.
        extra, extra_per_sample: further columns that the algorithm needs.
    """

    index: torch.Tensor
    seg: torch.Tensor
    counts: torch.Tensor
    mask: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    correction: torch.Tensor | None
    old_logp: torch.Tensor | None
    extra: Mapping[str, torch.Tensor]
    extra_per_sample: Mapping[str, torch.Tensor]

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        weight: torch.Tensor,
        samples: Sequence[int],
        *,
        needs: Collection[str] = (),
        index: torch.Tensor | None = None,
        old_logp: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> MicroBatchSlice:
        """Cut.

        Args:
            weight: [R] of the optimizer step, from :meth:`Prepared.weight`.
            samples: the micro-batch's samples in the order in which they are packed; may be empty.
            needs: the algorithm's; its columns beyond the standard ones come along.
            index: [r] the tokens this context rank holds, as :func:`response_index` numbers them; default: all.
            old_logp: [R]; default: the batch's, which may be None.
            dtype: of the floating-point columns.
        """
        batch = prepared.batch
        every, owner = response_index(batch, samples)
        if index is None:
            index, seg = every, owner
        else:
            place = torch.full((batch.response_tokens,), -1, dtype=torch.int64)
            place[every] = owner
            seg = place[index]
        if old_logp is None and batch.old_logp is not None:
            old_logp = batch.t("old_logp")
        rows = torch.as_tensor(samples, dtype=torch.int64)
        per_token, per_sample = _extras(batch, needs)
        return cls(
            index=index,
            seg=seg,
            counts=prepared.counts[rows],
            mask=prepared.mask[index],
            advantage=prepared.advantage[index].to(dtype),
            weight=weight[index].to(dtype),
            correction=None if prepared.correction is None else prepared.correction[index].to(dtype),
            old_logp=None if old_logp is None else old_logp[index].to(dtype),
            extra={name: x[index] for name, x in per_token.items()},
            extra_per_sample={name: x[rows] for name, x in per_sample.items()},
        )

    def to(self, device: torch.device | str) -> MicroBatchSlice:
        """The same on a device."""
        return replace(self, **{f.name: _to(getattr(self, f.name), device) for f in fields(self)})

    def view(self, logp: torch.Tensor, reduce: Reduce | None = None) -> MicroView:
        """What the surrogate gets. logp: [r] current log-probs in the order of ``index``, with gradient."""
        return MicroView.of(
            logp=logp,
            mask=self.mask,
            seg=self.seg,
            counts=self.counts,
            old_logp=self.old_logp,
            extra=self.extra,
            extra_per_sample=self.extra_per_sample,
            reduce=reduce,
        )


def response_index(batch: StepBatch, samples: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """([r] positions on the response axis of the samples' response tokens in packing order, [r] the token's sample as a
    position in ``samples``)."""
    starts = batch.response_starts
    pieces = [torch.arange(int(starts[i]), int(starts[i + 1])) for i in samples]
    empty = torch.zeros(0, dtype=torch.int64)
    owners = [torch.full((len(piece),), at) for at, piece in enumerate(pieces)]
    return torch.cat([empty, *pieces]), torch.cat([empty, *owners])


#: columns that a slice carries anyway, or that the trainer brings
_STANDARD = frozenset({"old_logp", "reward", "entropy"})


def _extras(batch: StepBatch, needs: Collection[str]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    axes = {"rollout_logp": "response"} | {name: axis for name, (axis, _) in batch.extra.items()}
    wanted = {name: axes[name] for name in needs if name not in _STANDARD}
    per_token = {name: batch.t(name) for name, axis in wanted.items() if axis == "response"}
    per_sample = {name: batch.t(name) for name, axis in wanted.items() if axis == "sample"}
    return per_token, per_sample


def _to(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _to(x, device) for name, x in value.items()}
    return value
