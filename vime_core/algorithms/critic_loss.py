"""What a critic minimises in one micro-batch, and how good its values were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from vime_core.algorithms.common import trainable
from vime_core.algorithms.metrics import Pair, token_pair, weighted_pair


class ValueLoss(NamedTuple):
    """Both [r]: the loss of each token, and where the value moved past the clip."""

    loss: torch.Tensor
    clipped: torch.Tensor


def value_loss(values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float) -> ValueLoss:
    """``max((V - G)^2, (clip(V, V_old - c, V_old + c) - G)^2)`` of each token, without a factor 1/2.

    So in slime; verl, OpenRLHF and TRL halve it.

    Args:
        values: [r] current, with gradient. old_values, returns: [r], before the step.
        clip: how far a value may move in a step; the mark is measured on the value before it is clipped.
    """
    near = torch.clamp(values, old_values - clip, old_values + clip)
    loss = torch.maximum((values - returns).square(), (near - returns).square())
    return ValueLoss(loss, (values - old_values).abs() > clip)


@dataclass(frozen=True)
class ValueColumns:
    """What a micro-batch's value loss reads beside the values, [r] each; whatever stands under the mask changes
    nothing."""

    old_values: torch.Tensor
    returns: torch.Tensor
    weight: torch.Tensor
    mask: torch.Tensor


def micro_value_loss(values: torch.Tensor, columns: ValueColumns, clip: float) -> tuple[torch.Tensor, dict[str, Pair]]:
    """``sum of weight * value loss`` over trainable tokens: a plain sum, as the policy's loss is.

    Args:
        values: [r] current, float32, with gradient; may be empty.
        clip: as in :func:`value_loss`.

    Returns:
        (scalar that is connected to the graph of ``values`` even where nothing is trainable, pairs).
    """
    mask = columns.mask
    current, old, target = (trainable(mask, x) for x in (values, columns.old_values, columns.returns))
    each = value_loss(current, old, target, clip)
    total = (trainable(mask, columns.weight) * each.loss).sum()
    pairs = {"value_loss": weighted_pair(total), "value_clipfrac": token_pair(each.clipped, mask)}
    return total + values[:0].sum(), pairs


def value_quality(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Means of values and returns, and ``explained_variance`` = 1 - var(G - V) / var(G), over trainable tokens of the
    whole step. values, returns, mask: [R]. What is not defined (no tokens; returns that are all equal) is left out."""
    v, g = values[mask].double(), returns[mask].double()
    if not len(v):
        return {}
    found = {"values/mean": float(v.mean()), "returns/mean": float(g.mean())}
    variance = g.var(correction=0)
    if bool((g != g[0]).any()) and float(variance) > 0:
        found["explained_variance"] = float(1 - (g - v).var(correction=0) / variance)
    return found
