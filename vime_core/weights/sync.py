"""The driver's end: engines listen while the trainer sends, then the core's transaction decides.

The transaction is the core's own (digest, names, canary, commit or back). What differs is that there is nothing to
describe beforehand: an announcement goes to the engines, the description travels with the bytes, and trainer and every
engine must come to the same digest.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from vime_core.api import EngineProof, Interrupted, SyncError, VimeError
from vime_core.weights.transaction import TransactionalSync

if TYPE_CHECKING:
    from vime_core.config import Config
    from vime_core.weights.manifest import Manifest
    from vime_core.weights.rendezvous import RendezvousStore

T = TypeVar("T")


class StreamSync(TransactionalSync):
    """Set ``kind``, and ``publisher`` and ``receiver`` where the transport is a device's."""

    #: the transport's name
    kind: ClassVar[str]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._point: RendezvousStore | None = None
        self._group = ""
        self._committed: int | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vime-sync")

    def deliver(
        self, trainer: Any, engines: Any, version: int, phases: dict[str, float]
    ) -> tuple[Manifest, list[EngineProof]]:
        from vime_core.weights.manifest import Manifest

        terms = self._terms(engines)
        base, self._committed = self._committed, None
        trainer.open({**terms, "base": base})
        announced = Manifest(version, self.kind, "", 0, (), terms)
        sending = self._thread.submit(_timed_call, phases, "publish", lambda: trainer.publish(version))
        refused = None
        try:
            proofs = _timed_call(phases, "transfer", lambda: engines.apply(announced))
        except SyncError as error:
            refused = error
        except BaseException:
            self._group = ""
            wait([sending])
            raise
        try:
            manifest = sending.result()
        except Interrupted:
            raise
        except VimeError as error:
            self._group = ""  # who has heard what is not known: the next push meets anew
            raise SyncError(f"{refused}; the trainer: {error}" if refused else f"the trainer: {error}") from error
        if refused is not None:
            self._group = ""
            raise refused
        return manifest, proofs

    def committed(self, version: int) -> None:
        self._committed = version

    def close(self) -> None:
        super().close()
        self._thread.shutdown()
        if self._point is not None:
            self._point.close()
            self._point = None

    def _terms(self, engines: Any) -> Mapping[str, Any]:
        from vime_core.runtime import reachable_host
        from vime_core.weights.rendezvous import RendezvousStore

        if self._point is None:
            self._point = RendezvousStore(reachable_host())
            self._point.open()
        if not self._group:
            self._group = f"{self.kind}-{uuid.uuid4().hex[:12]}"
        sync = self.config.sync
        return {
            "kind": self.kind,
            "host": self._point.host,
            "port": self._point.port,
            "group": self._group,
            "world": 1 + sum(engines.workers),
            "bucket": sync.update_weight_buffer_size,
            "timeout": sync.vllm_weight_transfer_timeout_sec,
        }


def _timed_call(phases: dict[str, float], name: str, work: Callable[[], T]) -> T:
    started = time.perf_counter()
    result = work()
    phases[name] = time.perf_counter() - started
    return result
