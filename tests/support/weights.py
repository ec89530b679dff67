"""What a worker does with an update, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vime_core.weights import Manifest, ModelLayout, Receive

if TYPE_CHECKING:
    import torch


def received(
    receive: Receive, version: int, terms: Mapping[str, Any], rank: int
) -> tuple[Manifest, dict[str, torch.Tensor]]:
    """(what came, the tensors), copied as they come."""
    incoming = receive(version, terms, rank, ModelLayout({}).require)
    tensors = {name: tensor.clone() for name, tensor in incoming.tensors()}
    return incoming.manifest, tensors
