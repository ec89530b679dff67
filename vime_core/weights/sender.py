"""The trainer's end: walks through the export once, and each bucket is on its way before the next tensor is asked for.

At no time does it hold more than a bucket for each element size and one tensor (and, for deltas, the version before).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError, SyncError
from vime_core.weights import delta
from vime_core.weights.bucket import Bucket, Packer
from vime_core.weights.channel import DELTA, END, FAILED, WHOLE, Channel, Connect, Packet, Rendezvous, send
from vime_core.weights.checksum import Digest
from vime_core.weights.manifest import Manifest, TensorEntry

if TYPE_CHECKING:
    import torch

    from vime_core.config import Config


class StreamPublisher:
    """Made once a sending rank. :meth:`open` says where to meet, :meth:`publish` sends.

    Args:
        connect: makes the channel.
        bucket: bytes of a bucket.
        deltas: send changes where they are fewer bytes; keeps a copy of the version before in host memory.
        corrupt: number of the sync (from 1) in which one byte is changed after its checksum was taken; 0 is none.
    """

    def __init__(self, connect: Connect, bucket: int, deltas: bool = False, corrupt: int = 0) -> None:
        self._connect, self.deltas, self.corrupt = connect, deltas, corrupt
        self._bucket = bucket
        self._packer = Packer(bucket)
        self._terms: Rendezvous = {}
        self._channel: Channel | None = None
        self._former: dict[int, Bucket] = {}
        self._former_version = 0
        self._count = 0

    @classmethod
    def of(cls, config: Config, connect: Connect, deltas: bool = False) -> StreamPublisher:
        """The trainer's end of a run.

        Raises:
            ConfigError: ``--sync-fault`` is not one.
        """
        sync = config.sync
        return cls(connect, sync.update_weight_buffer_size, deltas, fault_sync(sync.sync_fault))

    def open(self, terms: Rendezvous) -> None:
        """Where and with whom to meet in the next :meth:`publish`. The same group as before keeps its channel."""
        if self._channel is not None and terms.get("group") != self._terms.get("group"):
            self._channel.close()
            self._channel = None
        self._terms = dict(terms)

    def publish(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> Manifest:
        """Send the tensors as ``version`` to everybody in the group; what was sent.

        Raises:
            SyncError, DeadlineError: not everybody has it.
        """
        self._count += 1
        channel = self._joined()
        try:
            return self._stream(channel, named_tensors, version)
        except BaseException as error:
            self._former.clear()
            if channel.alive:
                text = f"{type(error).__name__}: {error}"
                send(channel, Packet(FAILED, version, json.dumps({"error": text}).encode()))
            raise

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._former.clear()

    # ---------------------------------------------------------------------------------------------------------
    def _joined(self) -> Channel:
        if not self._terms:
            raise SyncError("weights cannot be sent: the sync has not said where to meet")
        if self._channel is None or not self._channel.alive:
            self._channel = self._connect(self._terms, 0)
            self._packer = Packer(min(self._bucket, self._channel.largest), self._channel)
        return self._channel

    def _stream(self, channel: Channel, named: Iterable[tuple[str, torch.Tensor]], version: int) -> Manifest:
        digest, entries = Digest(), list[TensorEntry]()
        base = self._terms.get("base")
        base = base if base == self._former_version else None
        channel.begin()
        for number, bucket in enumerate(self._packer.pack(named)):
            table = bucket.table()
            digest.update(table)
            entries += bucket.entries
            former = self._former.get(number) if base is not None else None
            if self.deltas:
                self._former[number] = replace(bucket, flat=bucket.flat.cpu().clone())
            if self._count == self.corrupt and number == 0 and bucket.flat.numel():
                bucket.flat[0] ^= 0xFF
            send(channel, self._packet(bucket, former, Packet(WHOLE, version, table, bucket.flat, keep=self.deltas)))
        facts: dict[str, Any] = {"digest": digest.hexdigest(), "names": len(entries)}
        send(channel, Packet(END, version, json.dumps(facts).encode()))
        self._former_version = version
        return Manifest(version, facts["digest"], tuple(entries))

    def _packet(self, bucket: Bucket, former: Bucket | None, whole: Packet) -> Packet:
        """``whole``, or what changed since ``former`` where that is fewer bytes."""
        if former is None or former.entries != bucket.entries:
            return whole
        changes = delta.encode(former.flat.to(bucket.flat.device), bucket.flat, bucket.width)
        if changes is None:
            return whole
        flat, count = changes
        return replace(whole, kind=DELTA, flat=flat, count=count, base=self._former_version)


def fault_sync(fault: str | None) -> int:
    """The N of "corrupt:N"; 0 for None.

    Raises:
        ConfigError: another text.
    """
    if fault is None:
        return 0
    match = re.fullmatch(r"corrupt:([1-9]\d*)", fault)
    if match is None:
        raise ConfigError(f"--sync-fault {fault}: must be corrupt:N, N the number of the sync from 1")
    return int(match.group(1))
