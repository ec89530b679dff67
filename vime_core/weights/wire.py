"""Packets over a channel: a head of fixed size with the table (its rest follows where it is long), a run of bytes.

The receiver knows nothing beforehand: the head says how many bytes follow, the table what they are. A sender that fails
half way says so in a packet of its own, so nobody waits for a deadline to learn it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.api import SyncError
from vime_core.weights.channel import Channel
from vime_core.weights.manifest import aligned

if TYPE_CHECKING:
    import torch

#: a bucket as it is; a bucket as changes of an earlier one; the end of a version; the sender failed
WHOLE, DELTA, END, FAILED = 1, 2, 3, 4

_MAGIC = 0x76696D65
_HEAD = struct.Struct("<8q")
#: bytes of the first run: the numbers and, where it fits, the whole table, so that a bucket is two runs and not three
HEAD = 1 << 14
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
    data = _HEAD.pack(*numbers) + packet.table
    _send_bytes(channel, data[:HEAD], HEAD)
    if len(data) > HEAD:
        _send_bytes(channel, data[HEAD:], aligned(len(data) - HEAD))
    if packet.flat is not None and size:
        channel.give(packet.flat)


def receive(channel: Channel) -> Packet:
    """The next packet.

    Raises:
        SyncError: what came is none; the channel can carry nothing any more.
    """
    data = _receive_bytes(channel, HEAD)
    magic, kind, version, table, size, count, base, _ = _HEAD.unpack_from(data)
    if magic != _MAGIC or not 0 <= table <= _TABLE_LIMIT or size < 0 or kind not in (WHOLE, DELTA, END, FAILED):
        channel.alive = False
        raise SyncError("what arrived is no packet of weights: sender and receiver are out of step")
    end = _HEAD.size + table
    if end > HEAD:
        data += _receive_bytes(channel, aligned(end - HEAD))
    flat = channel.take(size) if size else None
    return Packet(kind, version, data[_HEAD.size : end], flat, count, base)


def _send_bytes(channel: Channel, data: bytes, size: int) -> None:
    import torch

    flat = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
    channel.broadcast(channel.empty(size).copy_(flat))


def _receive_bytes(channel: Channel, size: int) -> bytes:
    flat = channel.empty(size)
    channel.broadcast(flat)
    return bytes(flat.cpu().numpy())
