"""What a transport of bytes must do, and the packets that travel over it.

A packet is a head of fixed size with the table (its rest follows where it is long), then a run of bytes. The receiver
knows nothing beforehand: the head says how many bytes follow, the table what they are. A sender that fails half way
says so in a packet of its own, so nobody waits for a deadline to learn it.
"""

from __future__ import annotations

import abc
import json
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.api import SyncError
from vime_core.weights.manifest import aligned

if TYPE_CHECKING:
    import torch

#: what both ends must know to meet: ``kind`` of the transport, ``host``, ``port`` of the meeting point, ``group`` name,
#: ``world``, ``bucket`` bytes, ``timeout`` seconds
Rendezvous = Mapping[str, Any]


class Channel(abc.ABC):
    """One sender (rank 0) and everybody else, for the length of a run.

    Attributes:
        alive: it can carry another run of bytes; false for ever after an error.
        keeps_sent: what was sent stays in the sender's memory until it begins another version, and receivers map it. So
            they hold a whole version at no cost, and verify all of it before they load any.
        largest: bytes above which a bucket gains nothing here: receivers verify one while the next is packed.
    """

    alive: bool = True
    keeps_sent: ClassVar[bool] = False
    largest: ClassVar[int] = sys.maxsize

    @abc.abstractmethod
    def empty(self, size: int) -> torch.Tensor:
        """[size] uint8 where the transport can put bytes."""

    @abc.abstractmethod
    def broadcast(self, flat: torch.Tensor) -> None:
        """[n] uint8 from rank 0 into everybody's ``flat``; the bytes are there when it returns.

        Raises:
            SyncError, DeadlineError: they may not be there; the channel is not alive any more.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Idempotent."""

    # what a transport that hands memory over, and copies nothing, does in its own way ---------------------------
    def begin(self) -> None:
        """The sender begins a version; nobody uses what it sent before."""
        return

    def bucket(self, size: int) -> torch.Tensor:
        """[size] uint8 for the sender to pack a bucket in."""
        return self.empty(size)

    def give(self, flat: torch.Tensor) -> None:
        """Rank 0: a bucket's bytes to everybody."""
        self.broadcast(flat)

    def take(self, size: int) -> torch.Tensor:
        """Everybody else: the bytes of a :meth:`give`, [size] uint8."""
        flat = self.empty(size)
        self.broadcast(flat)
        return flat


#: makes the channel of one end: (terms, rank). Blocks until all ends are there, or until the deadline
Connect = Callable[[Rendezvous, int], Channel]


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
    many values it changes, of which version's bucket. ``keep``: changes of this bucket may be sent later."""

    kind: int
    version: int
    table: bytes
    flat: torch.Tensor | None = None
    count: int = 0
    base: int = 0
    keep: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.table)
        return found


def send(channel: Channel, packet: Packet) -> None:
    size = 0 if packet.flat is None else packet.flat.numel()
    numbers = (_MAGIC, packet.kind, packet.version, len(packet.table), size, packet.count, packet.base, packet.keep)
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
    magic, kind, version, table, size, count, base, keep = _HEAD.unpack_from(data)
    if magic != _MAGIC or not 0 <= table <= _TABLE_LIMIT or size < 0 or kind not in (WHOLE, DELTA, END, FAILED):
        channel.alive = False
        raise SyncError("what arrived is no packet of weights: sender and receiver are out of step")
    end = _HEAD.size + table
    if end > HEAD:
        data += _receive_bytes(channel, aligned(end - HEAD))
    flat = channel.take(size) if size else None
    return Packet(kind, version, data[_HEAD.size : end], flat, count, base, bool(keep))


def _send_bytes(channel: Channel, data: bytes, size: int) -> None:
    import torch

    flat = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
    channel.broadcast(channel.empty(size).copy_(flat))


def _receive_bytes(channel: Channel, size: int) -> bytes:
    flat = channel.empty(size)
    channel.broadcast(flat)
    return bytes(flat.cpu().numpy())
