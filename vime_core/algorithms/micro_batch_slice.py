"""A rank's part of a step for one micro-batch: the whole-step columns, cut out at its tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from vime_core.algorithms.prepare import Prepared
from vime_core.algorithms.view import MicroView, Reduce

if TYPE_CHECKING:
    from vime_core.batch.step_batch import StepBatch


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
