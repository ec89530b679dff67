"""Weights over TCP by gloo: trainer and engines anywhere.

The driver keeps a meeting point. For each sync, trainer rank 0 and all engine workers form a group of their own there,
the bytes go out in buckets into the workers' host memory, and then the same checks and the same load follow.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.interfaces.weight_sync import EngineProof
from vime_core.weights.transaction import TrainerHandle, TransactionalSync

if TYPE_CHECKING:
    from vime_core.config.sections import Config
    from vime_core.engine.group import EngineGroup
    from vime_core.engine.manifest import Manifest


class GlooSync(TransactionalSync):
    """The same bytes, broadcast in buckets of ``update_weight_buffer_size``."""

    supports_multi_node: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._store: Any = None
        self._host = ""

    def connect(self, trainer: TrainerHandle, engines: EngineGroup) -> None:
        import ray
        import torch.distributed as dist

        super().connect(trainer, engines)
        nodes = [node for node in ray.nodes() if node["Alive"]] if ray.is_initialized() else []
        self._host = "127.0.0.1" if len(nodes) <= 1 else ray.util.get_node_ip_address()
        self._store = dist.TCPStore(self._host, 0, is_master=True, wait_for_workers=False)

    def close(self) -> None:
        self._store = None
        super().close()

    def _carry(self, manifest: Manifest) -> list[EngineProof]:
        import dataclasses

        addressed = dataclasses.replace(manifest, kind="gloo").with_source(
            host=self._host,
            port=self._store.port,
            group=uuid.uuid4().hex,
            world=1 + sum(self._engines.workers),
            bucket=self.config.sync.update_weight_buffer_size,
            timeout=self.config.sync.vllm_weight_transfer_timeout_sec,
        )
        with ThreadPoolExecutor(1, "gloo-broadcast") as pool:
            sending = pool.submit(self._trainer.broadcast, addressed)
            proofs = self._engines.apply(addressed)
            sending.result(self.config.sync.vllm_weight_transfer_timeout_sec)
        return proofs
