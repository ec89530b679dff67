"""The trainer's end of a weight sync: turns an iterator of named tensors into bytes that engines can take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vime_core.engine.manifest import Manifest

if TYPE_CHECKING:
    import torch

    from vime_core.config.sections import Config

NamedTensors = Iterable[tuple[str, "torch.Tensor"]]


class Publisher:
    """Held by trainer rank 0 for the whole run; the other ranks only take part in making ``named_tensors``."""

    @classmethod
    def create(cls, config: Config, name: str) -> Publisher:
        """The publisher of the weight sync ``name``. Cheap; nothing is allocated before the first publish."""
        raise NotImplementedError

    def publish(self, named_tensors: NamedTensors, version: int) -> Manifest:
        """Copy the tensors (consumed one at a time, any device) and describe them."""
        raise NotImplementedError

    def broadcast(self, version: int, world: int) -> None:
        """Send the bytes of the published ``version`` to ``world - 1`` engine workers; a no-op where they need none."""

    def close(self) -> None:
        """Give the memory back. Idempotent."""
