"""The sync transaction that every carrier of weights shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from vime_core.interfaces.weight_sync import Receipt, WeightSync

if TYPE_CHECKING:
    from vime_core.config.sections import Config
    from vime_core.engine.manifest import Manifest


class TrainerHandle(Protocol):
    """What a sync needs of the trainer, called in the driver."""

    def publish(self, version: int) -> Manifest:
        """All ranks export; rank 0's ``Publisher.publish`` gives the manifest."""

    def broadcast(self, version: int, world: int) -> None:
        """Rank 0's ``Publisher.broadcast``; only called for kinds that need it ("gloo"), while engines receive."""

    def score(self, tokens: list[int]) -> Sequence[float]:
        """Log-probs of tokens[1:] given their prefixes, at temperature 1."""


class TransactionalSync(WeightSync):
    """publish -> pause -> check and load -> resume -> canary -> commit, or roll back."""

    def __init__(self, config: Config) -> None:
        raise NotImplementedError

    def connect(self, trainer: TrainerHandle, engines: Any) -> None:
        raise NotImplementedError

    def push(self, version: int) -> Receipt:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
