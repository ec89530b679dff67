"""The trainer's whole loss for one micro-batch: the whole-step columns cut out at its tokens, what a surrogate sees of
them, and the sum.

``sum over trainable tokens of weight * (correction * surrogate + kl_loss_coef * KL - entropy_coef * entropy)``: a plain
sum. Summed over micro-batches, data-parallel and context-parallel ranks it is the loss of the optimizer step, and so
are its gradients; the backend's own averaging must be undone outside (multiply by what it divides by).

Under context parallelism a rank holds some tokens of each sample, and the view is the only place that knows. Token-wise
formulas do not notice. Sample-wise ones go through ``seq_sum``, which all-reduces one number per sample.

Masking is by selection and happens in the view, before any arithmetic: what lies under the mask is replaced by 0 on the
way in. Selecting only at the end would not do: ``exp(NaN)`` has a NaN derivative, and 0 * NaN is NaN in a backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from vime_core.algorithms import stages
from vime_core.algorithms.centering import ImportanceWeight, TopkLogprobs, centered_loss
from vime_core.algorithms.common import trainable
from vime_core.algorithms.kl import kl_loss
from vime_core.algorithms.loss_config import LossConfig
from vime_core.algorithms.metrics import Pair, token_pair, weighted_pair
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.prepare import Prepared
from vime_core.api import TOP_LOGP, TrainerError
from vime_core.batch import no_column

if TYPE_CHECKING:
    from vime_core.batch import StepBatch

#: [n] -> [n]: sum over the context-parallel ranks, differentiable; its backward sums gradients over the ranks too,
#: because every rank's loss reads the sum (``torch.distributed.nn.functional.all_reduce`` does, an all-reduce with an
#: identity backward does not)
Reduce = Callable[[torch.Tensor], torch.Tensor]


class ExtraColumns(dict[str, torch.Tensor]):
    """Columns that the algorithm needs; one that it did not ask for is named."""

    def __missing__(self, name: str) -> NoReturn:
        raise no_column("the view", name)


@dataclass(frozen=True)
class MicroView:
    """Implements :class:`vime_core.api.algorithm.TokenView`. Build it with
    :meth:`MicroBatchSlice.view`.

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

    def columns(self) -> dict[str, torch.Tensor]:
        """All tensors of the view, by name."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("extra", "reduce")}
        return {**own, **self.extra}

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the view has no {name!r}; a column beside the standard ones is view.extra[{name!r}], for an algorithm "
            "that has it in `needs`"
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
        index: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> MicroBatchSlice:
        """Cut; the columns that the objective needs beyond the standard ones come along.

        Args:
            weight: [R] of the optimizer step, from :meth:`Prepared.weight`.
            samples: the micro-batch's samples in the order in which they are packed; may be empty.
            index: [r] the tokens this context rank holds, as :func:`response_index` numbers them; default: all.
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
        rows = torch.as_tensor(samples, dtype=torch.int64)
        per_token, per_sample = _extras(batch, prepared.needs)
        return cls(
            index=index,
            seg=seg,
            counts=prepared.counts[rows],
            mask=prepared.mask[index],
            advantage=prepared.advantage[index].to(dtype),
            weight=weight[index].to(dtype),
            correction=None if prepared.correction is None else prepared.correction[index].to(dtype),
            old_logp=None if batch.old_logp is None else batch.t("old_logp")[index].to(dtype),
            extra={name: x[index] for name, x in per_token.items()},
            extra_per_sample={name: x[rows] for name, x in per_sample.items()},
        )

    def to(self, device: torch.device | str) -> MicroBatchSlice:
        """The same on a device."""
        return replace(self, **{f.name: _to(getattr(self, f.name), device) for f in fields(self)})

    def view(self, logp: torch.Tensor, reduce: Reduce | None = None) -> MicroView:
        """What the surrogate gets: the trainable part of every token column. Without ``old_logp`` the current
        log-probs, detached, stand in for it: right when there is one optimizer step a rollout, where the ratio is then
        exactly 1.

        Args:
            logp: [r] current log-probs in the order of ``index``, with gradient.

        Raises:
            ValueError: a token column has another length than the mask.
        """
        old = logp if self.old_logp is None else self.old_logp
        tokens = {"logp": logp, "seg": self.seg, "old_logp": old, **self.extra}
        wrong = {name: len(x) for name, x in tokens.items() if len(x) != len(self.mask)}
        if wrong:
            raise ValueError(f"MicroView: {wrong} values for {len(self.mask)} tokens")
        return MicroView(
            logp=trainable(self.mask, logp),
            old_logp=trainable(self.mask, old.detach()).to(logp.dtype),
            mask=self.mask,
            seg=self.seg,
            counts=self.counts,
            extra=ExtraColumns({k: trainable(self.mask, x) for k, x in self.extra.items()}, **self.extra_per_sample),
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


# the loss -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TokenColumns:
    """What a micro-batch's loss reads beside the view, of the same r tokens.

    Attributes:
        advantage, weight, correction: [r]; ``weight`` is the aggregation's, counted over the optimizer step.
        entropy: [r] of the policy's distribution; with gradient when ``entropy_coef`` is not 0. Logged if given.
        topk_logprobs: [r, k] current log-probs, with gradient, of the tokens that the sampler found likeliest; for
            score centering.
    """

    advantage: torch.Tensor
    weight: torch.Tensor
    correction: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    topk_logprobs: torch.Tensor | None = None


def micro_loss(objective: Objective, view: MicroView, columns: TokenColumns) -> tuple[torch.Tensor, dict[str, Pair]]:
    """The loss and its metrics.

    Args:
        view: r tokens of n samples; may be empty. A KL reads ``view.extra["ref_logp"]``.

    Returns:
        (scalar that is connected to the graph of ``view.logp`` even where nothing is trainable, pairs). ``loss``,
        ``pg_loss``, ``entropy_loss`` and ``kl_loss`` are weighted sums; every other metric is (sum, tokens) over
        trainable tokens.

    Raises:
        TrainerError: the surrogate broke its contract, or entropy or reference is missing.
    """
    mask, loss_config = view.mask, objective.loss_config
    surrogate, token_metrics = policy_loss(objective, view, trainable(mask, columns.advantage), columns.topk_logprobs)
    scale = trainable(mask, columns.weight)
    corrected = scale if columns.correction is None else scale * trainable(mask, columns.correction)
    pg_loss = trainable(mask, corrected * surrogate).sum()
    # an empty slice: touches the graph, adds nothing, cannot turn an infinity into NaN
    loss = pg_loss + view.logp[:0].sum()
    metrics = {name: token_pair(x, mask) for name, x in token_metrics.items()}
    metrics["pg_loss"] = weighted_pair(pg_loss)
    if columns.entropy is not None:
        held = trainable(mask, columns.entropy)
        entropy_loss = (scale * held).sum()
        metrics |= {"entropy": token_pair(held, mask), "entropy_loss": weighted_pair(entropy_loss)}
        if loss_config.entropy_coef:
            loss = loss - loss_config.entropy_coef * entropy_loss
    elif loss_config.entropy_coef:
        raise TrainerError(f"entropy_coef is {loss_config.entropy_coef}, but no entropy was computed")
    if loss_config.kl_loss_coef:
        kl = _kl(view, loss_config)
        total = (scale * kl).sum()
        metrics |= {"ref_kl": token_pair(kl, mask), "kl_loss": weighted_pair(total)}
        loss = loss + loss_config.kl_loss_coef * total
    metrics["loss"] = weighted_pair(loss)
    return loss, metrics


def policy_loss(
    objective: Objective, view: MicroView, advantage: torch.Tensor, topk_logprobs: torch.Tensor | None = None
) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """([r] what pulls along the advantage, metrics [r]): the algorithm's surrogate, or what the loss config puts in its
    place. advantage: [r], 0 under the mask. topk_logprobs: as in :class:`TokenColumns`."""
    if objective.loss_config.score_centering_top_k:
        return _centered(view, advantage, objective.loss_config, topk_logprobs), {}
    if objective.loss_config.plain_gradient:
        return -advantage * view.logp, {}
    return stages.surrogate(objective, view, advantage)


def _centered(
    view: MicroView, advantage: torch.Tensor, loss_config: LossConfig, topk_logprobs: torch.Tensor | None
) -> torch.Tensor:
    if topk_logprobs is None:
        raise TrainerError("score centering is on, but no log-probs of the sampler's likeliest tokens were computed")
    policy = TopkLogprobs(view.logp, trainable(view.mask, topk_logprobs))
    sampler = TopkLogprobs(*(view.extra[name].to(view.logp.dtype) for name in ("rollout_logp", TOP_LOGP.name)))
    weight = ImportanceWeight(loss_config.score_centering_weight, *loss_config.score_centering_bounds)
    return centered_loss(policy, sampler, advantage, weight)


def _kl(view: MicroView, loss_config: LossConfig) -> torch.Tensor:
    """[r] with gradient, 0 under the mask, where all log-probs of the view are 0."""
    if "ref_logp" not in view.extra:
        raise TrainerError(f"kl_loss_coef is {loss_config.kl_loss_coef}, but no reference log-probs were computed")
    reference = view.extra["ref_logp"].to(view.logp.dtype)
    return kl_loss(view.logp, reference, view.old_logp, loss_config.kl_loss_type, unbiased=loss_config.use_unbiased_kl)
