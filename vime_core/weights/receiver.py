"""The engine's end, inside a vLLM worker: a version of the weights as it arrives, every bucket verified before any of
its tensors is given on.

What becomes of a copy of the weights in transit is the transport's: mapped memory of the sender is held as a whole, and
then all of it is verified before the first tensor; from any other transport buckets are given on as they come, and no
more than one is held. Only where changes are sent does a worker keep a version, to apply them to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vime_core.api import EngineError, SyncError, VimeError
from vime_core.plugin import load_target
from vime_core.weights import delta
from vime_core.weights.bucket import Bucket
from vime_core.weights.channel import DELTA, END, FAILED, Channel, Connect, Packet, Rendezvous, receive
from vime_core.weights.checksum import Digest
from vime_core.weights.manifest import Manifest, TensorEntry

if TYPE_CHECKING:
    import torch

RECEIVER_VARIABLE = "VIME_WEIGHT_RECEIVER"
#: memory of this machine, or gloo
RECEIVER = "vime_core.weights.transports.host:HostReceiver"

#: (entries, whether these are all of the version): raises SyncError where the model has no such tensors
LayoutCheck = Callable[[Sequence[TensorEntry], bool], None]


@dataclass
class UpdateResult:
    """What a worker says of its last update. ``error`` is empty when all went well; ``loaded``: tensors of this version
    have reached the model, all of them where there is no error."""

    version: int = -1
    error: str = ""
    loaded: bool = False
    digest: str = ""
    names: int = 0
    nbytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def describe(self, manifest: Manifest) -> None:
        """Of what was loaded."""
        self.digest, self.names, self.nbytes = manifest.digest, manifest.names, manifest.nbytes


@dataclass
class DeltaBase:
    """Buckets in host memory that changes may be sent of."""

    version: int | None = None
    buckets: dict[int, Bucket] = field(default_factory=dict)

    def clear(self) -> None:
        self.version = None
        self.buckets.clear()


class IncomingWeights:
    """One version on its way to this worker. Its tensors are walked through once.

    Attributes:
        manifest: of what came, once all of it has.
    """

    def __init__(self, channel: Channel, version: int, base: DeltaBase, check: LayoutCheck) -> None:
        self._channel, self.version, self._base, self._check = channel, version, base, check
        self._ended = False
        self._staged: list[Bucket] | None = list(self._arriving()) if channel.keeps_sent else None
        self.manifest: Manifest

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of one verified bucket after another.

        Raises:
            SyncError, DeadlineError: a bucket did not arrive as it was sent, or the model has no such tensors; those
                before it have been given on.
        """
        staged, self._staged = self._staged, None
        for bucket in self._arriving() if staged is None else staged:
            yield from bucket.tensors()

    def drain(self) -> None:
        """Listen to the end: the others of the group would wait for a worker that stops. What is lost by now is known
        to whoever asks for the rest."""
        with contextlib.suppress(VimeError):
            while not self._ended:
                self._next()

    def abandon(self) -> None:
        """Nobody will ask for the tensors. Where they have not been sent yet, the group is given up."""
        self._staged = None
        if not self._ended:
            self._ended = True
            self._channel.close()

    def _arriving(self) -> Iterator[Bucket]:
        digest, entries, count = Digest(), list[TensorEntry](), 0
        try:
            while (packet := self._next()).kind not in (END, FAILED):
                bucket = self._verified(packet, count)
                self._check(bucket.entries, False)
                digest.update(packet.table)
                entries += bucket.entries
                count += 1
                yield bucket
            self.manifest = Manifest(self.version, digest.hexdigest(), tuple(entries))
            self._finish(packet)
        except BaseException:
            self._base.clear()
            raise
        finally:
            self.drain()

    def _finish(self, last: Packet) -> None:
        if last.kind == FAILED:
            raise SyncError(f"the sender failed: {last.facts['error']}")
        self._check(self.manifest.tensors, True)
        wanted = last.facts["digest"]
        if self.manifest.digest != wanted:
            raise SyncError(f"received buckets have digest {self.manifest.digest}, the sender's have {wanted}")
        self._base.version = self.version

    def _next(self) -> Packet:
        try:
            packet = receive(self._channel)
        except BaseException:
            self._ended = True
            raise
        self._ended = packet.kind in (END, FAILED)
        return packet

    def _verified(self, packet: Packet, number: int) -> Bucket:
        import torch

        if packet.version != self.version:
            raise SyncError(f"the sender is at weights version {packet.version}, version {self.version} was announced")
        flat = packet.flat if packet.flat is not None else torch.empty(0, dtype=torch.uint8, device="cpu")
        if packet.kind == DELTA:
            former = self._former(packet.base, number)
            flat = delta.apply(former.flat, flat.cpu(), packet.count, former.width)
        bucket = Bucket.of_table(packet.table, flat)
        bucket.verify()
        if packet.keep:
            # mapped memory is the sender's: it writes its next version there
            mapped = self._channel.keeps_sent and packet.kind != DELTA
            self._base.buckets[number] = replace(bucket, flat=flat.clone() if mapped else flat.cpu())
        return bucket

    def _former(self, base: int, number: int) -> Bucket:
        if self._base.version != base or number not in self._base.buckets:
            have = "nothing" if self._base.version is None else f"version {self._base.version}"
            raise SyncError(f"the sender sends changes of version {base}, this worker has {have}")
        return self._base.buckets[number]


class StreamReceiver:
    """Made once a worker; called for each update.

    Args:
        connect: makes the channel.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._channel: Channel | None = None
        self._group = ""
        self._base = DeltaBase()

    def __call__(self, version: int, terms: Rendezvous, rank: int, check: LayoutCheck) -> IncomingWeights:
        """Meet the others; where the transport holds a whole version, take and verify all of it.

        Args:
            terms: where and with whom to meet; the same group as before keeps its channel.
            rank: of this worker in the group.
            check: called with each bucket's entries before its tensors are given on, and with all of them.

        Raises:
            SyncError, DeadlineError: nobody was there, or it did not arrive as it was sent.
        """
        if self._channel is not None and (terms["group"] != self._group or not self._channel.alive):
            self._channel.close()
            self._channel = None
        if self._channel is None:
            self._channel, self._group = self._connect(terms, rank), terms["group"]
        return IncomingWeights(self._channel, version, self._base, check)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._base.clear()


#: what a worker is given: (version, where to meet, its rank in the group, the model's check)
Receive = Callable[[int, Rendezvous, int, LayoutCheck], IncomingWeights]


def make_receiver(target: str) -> Receive:
    """A class is made, once; a function is taken as it is.

    Raises:
        PluginError: nothing has this name.
    """
    found = load_target(target)
    made: Receive = found() if isinstance(found, type) else found
    return made


def chosen_receiver() -> Receive:
    """What this process's environment names: what arrives over HTTP names no code, the environment is the driver's own.

    Raises:
        EngineError: it names nothing: the engine was not started for weights that change.
    """
    target = os.environ.get(RECEIVER_VARIABLE)
    if not target:
        raise EngineError(f"{RECEIVER_VARIABLE} is not set in this engine's environment: it has to name a receiver")
    return make_receiver(target)
