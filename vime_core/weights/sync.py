"""The driver's end of an update: engines listen while the trainer sends; digests, counts of names and a canary decide.

There is nothing to describe beforehand: where to meet goes to both ends, the description travels with the bytes, and
trainer and every engine must come to the same digest.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from vime_core.api import EngineProof, Interrupted, Receipt, SyncError, VimeError, WeightSync
from vime_core.weights.rendezvous import RendezvousStore

if TYPE_CHECKING:
    from vime_core.config import Config
    from vime_core.weights.manifest import Manifest


class TrainerHandle(Protocol):
    """What a sync needs of the trainer, called in the driver."""

    def open(self, terms: Mapping[str, Any]) -> None:
        """The ``open`` of every sending rank's publisher."""

    def publish(self, version: int) -> Manifest:
        """All ranks export; the manifest of rank 0's ``publish``."""

    def score(self, tokens: list[int]) -> Sequence[float]:
        """Log-probs of tokens[1:] given their prefixes, at temperature 1."""


class EngineHandle(Protocol):
    """What a sync needs of the engines, called in the driver."""

    #: vLLM worker processes of each engine
    workers: Sequence[int]
    #: of the last ``apply``, by phase
    seconds: Mapping[str, float]
    canary: list[int]

    def apply(self, version: int, terms: Mapping[str, Any]) -> list[EngineProof]:
        """Every engine takes, verifies and loads what the trainer sends.

        Raises:
            SyncError: one did not; each serves the version it had, or nothing.
        """

    def discard(self, version: int) -> bool:
        """``version`` does not count. Whether an engine had loaded any of it: then it serves nothing until an update
        passes."""

    def score(self, tokens: Sequence[int]) -> list[list[float]]:
        """Each engine's log-probs of tokens[1:]."""


class StreamSync(WeightSync):
    """Set ``kind``, and ``publisher`` and ``receiver`` where the transport is a device's.

    An engine labels its tokens with the new version from the moment it has loaded it, since that is what they are
    sampled with. The run's version moves when :meth:`push` returns: after every digest, every count of names and the
    canary agreed. No copy of the version before is kept: an engine that has loaded any of a version that does not
    count has no weights to serve with, and refuses requests until another push passes.
    """

    #: the transport's name
    kind: ClassVar[str]

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tolerance = canary_tolerance(config)
        self._ends: tuple[TrainerHandle, EngineHandle] | None = None
        self._store: RendezvousStore | None = None
        self._group = ""
        self._committed: int | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vime-sync")

    def connect(self, trainer: TrainerHandle, engines: EngineHandle) -> None:
        self._ends = trainer, engines

    def push(self, version: int) -> Receipt:
        if self._ends is None:
            raise SyncError("push before connect")
        (trainer, engines), started, phases = self._ends, time.perf_counter(), dict[str, float]()
        manifest, proofs = self.deliver(trainer, engines, version, phases)
        phases.update(engines.seconds)
        try:
            _require_equal(manifest, proofs)
            with _timed(phases, "canary"):
                proofs = self._with_canary(trainer, engines, proofs)
            self._require_close(proofs)
        except Interrupted:
            self._discard(engines, version)
            raise
        except VimeError as error:
            raise SyncError(
                f"weights version {version} not committed: {error}; {self._discard(engines, version)}"
            ) from error
        self._committed = version
        seconds = time.perf_counter() - started
        return Receipt(version, manifest.digest, manifest.names, manifest.nbytes, seconds, tuple(proofs), phases)

    def close(self) -> None:
        self._ends = None
        self._thread.shutdown()
        if self._store is not None:
            self._store.close()
            self._store = None

    def deliver(
        self, trainer: TrainerHandle, engines: EngineHandle, version: int, phases: dict[str, float]
    ) -> tuple[Manifest, list[EngineProof]]:
        """Get the trainer's weights into every engine's model: what was sent, and what each engine has.

        Raises:
            SyncError: an engine or the trainer failed; each engine serves the version it had, or nothing.
        """
        terms = self._terms(engines)
        base, self._committed = self._committed, None
        trainer.open({**terms, "base": base})
        sending = self._thread.submit(self._publish, trainer, version, phases)
        refused: SyncError | None = None
        try:
            with _timed(phases, "transfer"):
                proofs = engines.apply(version, terms)
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

    # ---------------------------------------------------------------------------------------------------------
    def _publish(self, trainer: TrainerHandle, version: int, phases: dict[str, float]) -> Manifest:
        with _timed(phases, "publish"):
            return trainer.publish(version)

    def _terms(self, engines: EngineHandle) -> Mapping[str, Any]:
        from vime_core.runtime import reachable_host

        if self._store is None:
            self._store = RendezvousStore(reachable_host())
            self._store.open()
        if not self._group:
            self._group = f"{self.kind}-{uuid.uuid4().hex[:12]}"
        sync = self.config.sync
        return {
            "kind": self.kind,
            "host": self._store.host,
            "port": self._store.port,
            "group": self._group,
            "world": 1 + sum(engines.workers),
            "bucket": sync.update_weight_buffer_size,
            "timeout": sync.vllm_weight_transfer_timeout_sec,
        }

    def _discard(self, engines: EngineHandle, version: int) -> str:
        """Take an uncommitted version from the engines; what became of it."""
        try:
            engines.discard(version)
        except VimeError as error:
            return f"and not every engine could be told: {error}"
        return "no engine serves anything until a push passes"

    def _with_canary(
        self, trainer: TrainerHandle, engines: EngineHandle, proofs: Sequence[EngineProof]
    ) -> list[EngineProof]:
        mine, scores = list(trainer.score(engines.canary)), engines.score(engines.canary)
        return [replace(p, canary_gap=_gap(p.engine, mine, theirs)) for p, theirs in zip(proofs, scores, strict=True)]

    def _require_close(self, proofs: Sequence[EngineProof]) -> None:
        for proof in proofs:
            if proof.canary_gap is None or not proof.canary_gap <= self.tolerance:
                raise SyncError(
                    f"{proof.engine}: canary log-probs are {proof.canary_gap} from the trainer's, more than "
                    f"{self.tolerance} (--sync-canary-tolerance): the same bytes mean another model there"
                )


def canary_tolerance(config: Config) -> float:
    """The configured one, or what rounding of the type allows."""
    if config.sync.sync_canary_tolerance is not None:
        return config.sync.sync_canary_tolerance
    return 0.25 if config.megatron.bf16 else 1e-4


def _require_equal(manifest: Manifest, proofs: Sequence[EngineProof]) -> None:
    want = (manifest.version, manifest.digest, manifest.names)
    for proof in proofs:
        have = (proof.version, proof.digest, proof.names)
        if have != want:
            raise SyncError(f"{proof.engine} has (version, digest, names) {have}, the trainer sent {want}")


def _gap(engine: str, mine: Sequence[float], theirs: Sequence[float]) -> float:
    if len(mine) != len(theirs) or not mine:
        raise SyncError(f"{engine}: {len(theirs)} canary log-probs, the trainer has {len(mine)}")
    gaps = [abs(a - b) for a, b in zip(mine, theirs)]
    return max(gaps) if all(gap == gap for gap in gaps) else float("inf")


@contextmanager
def _timed(phases: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    phases[name] = time.perf_counter() - started
