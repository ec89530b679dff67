"""Weight syncs that are wrong, each in one way; the right one is the core's."""

from __future__ import annotations

import dataclasses

from vime_testing import WeightSyncSuite

from vime_core.api.errors import SyncError
from vime_core.api.weight_sync import EngineProof, Receipt
from vime_core.weights.shared_memory import SharedMemorySync


class Stale(SharedMemorySync):
    """Sends what it saw first."""

    first = None

    def _carry(self, manifest):
        Stale.first = Stale.first or manifest
        first = Stale.first
        return self._engines.apply(dataclasses.replace(first, version=manifest.version))


class Pretends(SharedMemorySync):
    """Sends nothing and says that all is well."""

    def push(self, version):
        if self._trainer is None:
            raise SyncError("push before connect")
        sent = self._trainer.publish(version)
        proofs = tuple(EngineProof(name, version, sent.digest, sent.names, 0.0) for name in self._engines.names)
        return Receipt(version, sent.digest, sent.names, sent.nbytes, 0.0, proofs)


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
    """Does not go back."""

    def _back(self, version, former):
        return "nothing was done"


class NoCanary(SharedMemorySync):
    def _with_canary(self, proofs):
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
