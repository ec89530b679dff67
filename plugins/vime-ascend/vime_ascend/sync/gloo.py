"""The same stream over gloo, from host memory to host memory: for machines without an NPU, and for trying the
transaction of the other carriers there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vime_ascend.config import AscendOptions
from vime_ascend.sync.channel import Connect, Terms
from vime_ascend.sync.receiver import StreamReceiver
from vime_ascend.sync.sender import StreamPublisher
from vime_ascend.sync.transaction import StreamSync
from vime_core.errors import SyncError
from vime_core.weights.publisher import fault_sync

if TYPE_CHECKING:
    import torch

    from vime_core import Config


class GlooChannel:
    """One gloo group for the run."""

    def __init__(self, terms: Terms, rank: int) -> None:
        from vime_core.engine.gloo_link import GlooLink

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
    publisher: ClassVar[str] = "vime_ascend.sync.gloo:make_publisher"
    receiver: ClassVar[str] = "vime_ascend.sync.gloo:GlooReceiver"


class GlooReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(GlooChannel)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, "stream", GlooChannel)


def publisher_of(config: Config, kind: str, connect: Connect) -> StreamPublisher:
    """The trainer's end of a run, whatever carries its bytes."""
    options = config.plugins.get("ascend") or AscendOptions()
    sync = config.sync
    return StreamPublisher(kind, connect, sync.update_weight_buffer_size, options.delta, fault_sync(sync.sync_fault))
