"""Both ends of the transports that need no device: shared memory of one machine, and gloo. What both ends are told when
they meet names the one; an engine that vime did not start is made with this receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.api import SyncError
from vime_core.weights.channel import Channel, Rendezvous
from vime_core.weights.receiver import StreamReceiver
from vime_core.weights.sender import StreamPublisher
from vime_core.weights.transports.gloo import GlooChannel
from vime_core.weights.transports.shared_memory import SharedMemoryChannel

if TYPE_CHECKING:
    from vime_core.config import Config

_CHANNELS: dict[str, type[GlooChannel]] = {"shared_memory": SharedMemoryChannel, "gloo": GlooChannel}


def connect(terms: Rendezvous, rank: int) -> Channel:
    """Raises SyncError where the sync's transport is a device's."""
    made = _CHANNELS.get(terms["kind"])
    if made is None:
        raise SyncError(f"weights of kind {terms['kind']!r}: this end has {' and '.join(_CHANNELS)}")
    return made(terms, rank)


class HostReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(connect)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return StreamPublisher.of(config, connect)
