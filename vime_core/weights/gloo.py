"""Weights over TCP by gloo: trainer and engines anywhere.

For each sync, trainer rank 0 and all engine workers form a group of their own at a meeting point that the trainer
keeps. The bytes go out in buckets into the workers' host memory; then the same checks and the same load follow.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from vime_core.api.weight_sync import EngineProof
from vime_core.runtime.calls import gather
from vime_core.weights.transaction import TransactionalSync

if TYPE_CHECKING:
    from vime_core.weights.manifest import Manifest


class GlooSync(TransactionalSync):
    """The same bytes, broadcast in buckets of ``update_weight_buffer_size``."""

    supports_multi_node: ClassVar[bool] = True

    def _carry(self, manifest: Manifest) -> list[EngineProof]:
        world = 1 + sum(self._engines.workers)
        sending = self._trainer.broadcast(manifest.version, world)
        proofs = self._engines.apply(dataclasses.replace(manifest, kind="gloo").with_source(world=world))
        deadline = self.config.sync.vllm_weight_transfer_timeout_sec
        gather(["trainer"], [sending], deadline, f"broadcast of weights version {manifest.version}")
        return proofs
