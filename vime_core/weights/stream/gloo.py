"""The stream over gloo, from host memory to host memory: for machines without an accelerator, and for trying the
transaction of the other carriers there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vime_core.api.errors import SyncError
from vime_core.weights.stream.channel import LossConfig
from vime_core.weights.stream.receiver import StreamReceiver
from vime_core.weights.stream.sender import StreamPublisher
from vime_core.weights.stream.transaction import StreamSync

if TYPE_CHECKING:
    import torch

    from vime_core.config.sections import Config


class GlooChannel:
    """One gloo group for the run."""

    def __init__(self, terms: LossConfig, rank: int) -> None:
        from vime_core.weights.gloo_link import GlooLink

        self.alive = True
        self._link: GlooLink | None = GlooLink(terms, rank)

    def empty(self, size: int) -> torch.Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8)

    def broadcast(self, flat: torch.Tensor) -> None:
        if self._link is None or not self.alive:
            raise SyncError("the gloo channel is closed")
        try:
            self._link.broadcast(flat)
        except RuntimeError as error:
            self.alive = False
            raise SyncError(f"gloo: {str(error).splitlines()[0]}") from error

    def close(self) -> None:
        self._link, self.alive = None, False


class StreamGlooSync(StreamSync):
    kind: ClassVar[str] = "stream"
    publisher: ClassVar[str] = "vime_core.weights.stream.gloo:make_publisher"
    receiver: ClassVar[str] = "vime_core.weights.stream.gloo:GlooReceiver"


class GlooReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(GlooChannel)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return StreamPublisher.of(config, StreamGlooSync.kind, GlooChannel)
