"""The critic's loss."""

from __future__ import annotations

from typing import NamedTuple

import torch


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
