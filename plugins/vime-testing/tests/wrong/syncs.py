"""Weight syncs that are wrong, each in one way; the right one is the core's."""

from __future__ import annotations

import dataclasses

from vime_testing import WeightSyncSuite

from vime_core.api.errors import SyncError
from vime_core.api.weight_sync import EngineProof, Receipt
from vime_core.weights.sender import StreamPublisher
from vime_core.weights.transports.host import connect
from vime_core.weights.transports.shared_memory import SharedMemorySync


class StalePublisher(StreamPublisher):
    """Sends what it saw first, and says the digest of what it has."""

    first = None

    def publish(self, named_tensors, version):
        mine = [(name, tensor.clone()) for name, tensor in named_tensors]
        again, self.first = self.first is not None, self.first or mine
        sent = super().publish(self.first, version)
        return dataclasses.replace(sent, digest=sent.digest[::-1]) if again else sent


def stale_publisher(config, name=""):
    return StalePublisher.of(config, connect)


class Stale(SharedMemorySync):
    publisher = "syncs:stale_publisher"


class Pretends(SharedMemorySync):
    """Sends nothing and says that all is well."""

    def push(self, version):
        if self._ends is None:
            raise SyncError("push before connect")
        digest, names, nbytes = "0" * 32, 11, 1
        proofs = tuple(EngineProof(name, version, digest, names, 0.0) for name in self._ends[1].names)
        return Receipt(version, digest, names, nbytes, 0.0, proofs)


class Swallows(SharedMemorySync):
    """Takes an engine's refusal for a success."""

    receipt = None

    def push(self, version):
        try:
            self.receipt = super().push(version)
        except SyncError:
            if self.receipt is None:
                raise
        return self.receipt


class LeavesAMix(SharedMemorySync):
    """Lets engines serve what was not committed."""

    def _discard(self, engines, version):
        return "nothing was done"


class NoCanary(SharedMemorySync):
    def _with_canary(self, trainer, engines, proofs):
        return [dataclasses.replace(proof, canary_gap=0.0) for proof in proofs]


class WrongReceipt(SharedMemorySync):
    def push(self, version):
        receipt = super().push(version)
        return dataclasses.replace(receipt, names=receipt.names + 1)


class RaisesOtherwise(SharedMemorySync):
    def push(self, version):
        try:
            return super().push(version)
        except SyncError as error:
            raise RuntimeError(str(error)) from error


class TestStale(WeightSyncSuite):
    target = Stale


class TestPretends(WeightSyncSuite):
    target = Pretends


class TestSwallows(WeightSyncSuite):
    target = Swallows


class TestLeavesAMix(WeightSyncSuite):
    target = LeavesAMix


class TestNoCanary(WeightSyncSuite):
    target = NoCanary


class TestWrongReceipt(WeightSyncSuite):
    target = WrongReceipt


class TestRaisesOtherwise(WeightSyncSuite):
    target = RaisesOtherwise
