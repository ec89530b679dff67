"""Packets over a channel: a head of fixed size, a table, a run of bytes.

The receiver knows nothing beforehand: the head says how many bytes follow, the table what they are. A sender that fails
half way says so in a packet of its own, so nobody waits for a deadline to learn it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.api.errors import SyncError
from vime_core.weights.manifest import aligned
from vime_core.weights.stream.channel import Channel

if TYPE_CHECKING:
    import torch

#: a bucket as it is; a bucket as changes of an earlier one; the end of a version; the sender failed
WHOLE, DELTA, END, FAILED = 1, 2, 3, 4

_MAGIC = 0x76696D65
_HEAD = struct.Struct("<8q")
_TABLE_LIMIT = 1 << 28


@dataclass(frozen=True)
class Packet:
    """``table`` is JSON of a bucket, or of ``facts`` for END and FAILED. ``count`` and ``base`` belong to a DELTA: how
    many values it changes, of which version's bucket."""

    kind: int
    version: int
    table: bytes
    flat: torch.Tensor | None = None
    count: int = 0
    base: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.table)
        return found


def send(channel: Channel, packet: Packet) -> None:
    size = 0 if packet.flat is None else packet.flat.numel()
    numbers = (_MAGIC, packet.kind, packet.version, len(packet.table), size, packet.count, packet.base, 0)
    _send_bytes(channel, _HEAD.pack(*numbers))
    _send_bytes(channel, packet.table)
    if packet.flat is not None and size:
        channel.broadcast(packet.flat)


def receive(channel: Channel) -> Packet:
    """The next packet.

    Raises:
        SyncError: what came is none; the channel can carry nothing any more.
    """
    numbers = _HEAD.unpack(_receive_bytes(channel, _HEAD.size))
    magic, kind, version, table, size, count, base, _ = numbers
    if magic != _MAGIC or not 0 <= table <= _TABLE_LIMIT or size < 0 or kind not in (WHOLE, DELTA, END, FAILED):
        channel.alive = False
        raise SyncError("what arrived is no packet of weights: sender and receiver are out of step")
    written = _receive_bytes(channel, table)
    flat = channel.empty(size) if size else None
    if flat is not None:
        channel.broadcast(flat)
    return Packet(kind, version, written, flat, count, base)


def _send_bytes(channel: Channel, data: bytes) -> None:
    import torch

    flat = channel.empty(aligned(len(data)))
    flat[: len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    channel.broadcast(flat)


def _receive_bytes(channel: Channel, size: int) -> bytes:
    flat = channel.empty(aligned(size))
    channel.broadcast(flat)
    return bytes(flat[:size].cpu().numpy())
