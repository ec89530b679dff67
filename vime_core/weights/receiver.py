"""The engine's end, inside a vLLM worker: takes a whole version into host memory before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.api import SyncError
from vime_core.weights import delta, wire
from vime_core.weights.bucket import Bucket, entries_of
from vime_core.weights.channel import Channel, Connect, Rendezvous
from vime_core.weights.manifest import Manifest
from vime_core.weights.received import ReceivedBuckets

if TYPE_CHECKING:
    import torch


class StreamReceiver:
    """Made once a worker; called for each update with the announcement and this worker's rank in the group.

    Args:
        connect: makes the channel.
        pin: page-lock the host memory, which makes loading faster.
    """

    def __init__(self, connect: Connect, pin: bool = False) -> None:
        self._connect, self._pin = connect, pin
        self._channel: Channel | None = None
        self._group = ""
        self._last: ReceivedBuckets | None = None

    def __call__(self, announced: Manifest, rank: int) -> ReceivedBuckets:
        """Everything that the sender sends as the announced version.

        Raises:
            SyncError, DeadlineError: it did not arrive as a whole.
        """
        buckets, last, fault = self._taken(self._joined(announced.source, rank), announced)
        self._last = None
        if fault is not None:
            raise fault
        if last.kind == wire.FAILED:
            raise SyncError(f"the sender failed: {last.facts['error']}")
        facts = last.facts
        made = ReceivedBuckets(announced.version, announced.kind, buckets, facts["digest"], facts["method"])
        self._last = made
        return self._last

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._last = None

    def _taken(self, channel: Channel, announced: Manifest) -> tuple[list[Bucket], wire.Packet, SyncError | None]:
        """(buckets, last packet, first fault). It listens to the end whatever happens, because the others of the group
        would wait for a worker that stops."""
        buckets: list[Bucket] = []
        fault: SyncError | None = None
        while (packet := wire.receive(channel)).kind not in (wire.END, wire.FAILED):
            try:
                fault = fault or _stray(packet, announced)
                if fault is None:
                    buckets.append(self._bucket(packet, len(buckets)))
            except SyncError as error:
                fault = error
        return buckets, packet, fault

    def _joined(self, terms: Rendezvous, rank: int) -> Channel:
        if self._channel is not None and (terms["group"] != self._group or not self._channel.alive):
            self._channel.close()
            self._channel = None
        if self._channel is None:
            self._channel, self._group = self._connect(terms, rank), terms["group"]
        return self._channel

    def _bucket(self, packet: wire.Packet, number: int) -> Bucket:
        import torch

        arrived = packet.flat if packet.flat is not None else torch.empty(0, dtype=torch.uint8)
        if packet.kind == wire.WHOLE:
            entries, width = entries_of(packet.table, arrived.numel())
            return Bucket(entries, self._host(arrived), width)
        former = self._former(packet.base, number)
        entries, width = entries_of(packet.table, former.flat.numel())
        return Bucket(entries, delta.apply(former.flat, arrived.cpu(), packet.count, width), width)

    def _former(self, base: int, number: int) -> Bucket:
        if self._last is None or self._last.version != base or number >= len(self._last.buckets):
            have = "nothing" if self._last is None else f"version {self._last.version}"
            raise SyncError(f"the sender sends changes of version {base}, this worker has {have}")
        return self._last.buckets[number]

    def _host(self, flat: torch.Tensor) -> torch.Tensor:
        import torch

        if flat.device.type == "cpu":
            return flat
        host = torch.empty(flat.numel(), dtype=torch.uint8, pin_memory=self._pin)
        return host.copy_(flat)


def _stray(packet: wire.Packet, announced: Manifest) -> SyncError | None:
    if packet.version == announced.version:
        return None
    return SyncError(f"the sender is at weights version {packet.version}, version {announced.version} was announced")
