"""The trainer's whole loss for one micro-batch.

``sum over trainable tokens of weight * (correction * surrogate + kl_loss_coef * KL - entropy_coef * entropy)``: a plain
sum. Summed over micro-batches, data-parallel and context-parallel ranks it is the loss of the optimizer step, and so
are its gradients; the backend's own averaging must be undone outside (multiply by what it divides by).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vime_core.algorithms.centering import ImportanceWeight, centered_loss
from vime_core.algorithms.common import trainable
from vime_core.algorithms.kl import kl_loss
from vime_core.algorithms.loss_config import LossConfig
from vime_core.algorithms.metrics import Pair, token_pair, weighted_pair
from vime_core.algorithms.micro_batch_slice import MicroView
from vime_core.algorithms.objective import Objective
from vime_core.api import TOP_LOGP, TrainerError


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
        TrainerError: the surrogate or a metric has another shape than [r], or entropy or reference is missing.
    """
    mask, loss_config = view.mask, objective.loss_config
    surrogate, token_metrics = policy_loss(objective, view, trainable(mask, columns.advantage), columns.topk_logprobs)
    for name, x in {"surrogate": surrogate, **token_metrics}.items():
        if x.shape != mask.shape:
            who = f"algorithm {objective.algorithm.name!r}"
            raise TrainerError(f"{who}: {name} has shape {tuple(x.shape)}, expected {tuple(mask.shape)}")
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
    return objective.algorithm.surrogate(view, advantage, objective.options)


def _centered(
    view: MicroView, advantage: torch.Tensor, loss_config: LossConfig, topk_logprobs: torch.Tensor | None
) -> torch.Tensor:
    if topk_logprobs is None:
        raise TrainerError("score centering is on, but no log-probs of the sampler's likeliest tokens were computed")
    sampler, sampler_topk_logprobs = (view.extra[name].to(view.logp.dtype) for name in ("rollout_logp", TOP_LOGP.name))
    weight = ImportanceWeight(loss_config.score_centering_weight, *loss_config.score_centering_bounds)
    return centered_loss(
        view.logp, sampler, trainable(view.mask, topk_logprobs), sampler_topk_logprobs, advantage, weight
    )


def _kl(view: MicroView, loss_config: LossConfig) -> torch.Tensor:
    """[r] with gradient, 0 under the mask, where all log-probs of the view are 0."""
    if "ref_logp" not in view.extra:
        raise TrainerError(f"kl_loss_coef is {loss_config.kl_loss_coef}, but no reference log-probs were computed")
    reference = view.extra["ref_logp"].to(view.logp.dtype)
    return kl_loss(view.logp, reference, view.old_logp, loss_config.kl_loss_type, unbiased=loss_config.use_unbiased_kl)
