"""The sync transaction that every carrier of weights shares: publish, check and load, canary, commit or go back."""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from vime_core.api import EngineProof, Interrupted, Receipt, SyncError, VimeError, WeightSync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vime_core.config import Config
    from vime_core.inference import EngineGroup
    from vime_core.weights.manifest import Manifest


class TrainerHandle(Protocol):
    """What a sync needs of the trainer, called in the driver."""

    def open(self, terms: Mapping[str, Any]) -> None:
        """The ``open`` of every sending rank's publisher; only a sync whose publisher has one asks."""

    def publish(self, version: int) -> Manifest:
        """All ranks export; rank 0's ``Publisher.publish`` gives the manifest."""

    def score(self, tokens: list[int]) -> Sequence[float]:
        """Log-probs of tokens[1:] given their prefixes, at temperature 1."""


class TransactionalSync(WeightSync):
    """Each engine checks all bytes before it touches its model, and keeps what it needs to go back.

    An engine labels its tokens with the new version from the moment it has loaded it, since that is what they are
    sampled with. The run's version moves when :meth:`push` returns: after every digest, every count of names and the
    canary agreed. Until then, and after an error, all engines can be and are taken back.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tolerance = canary_tolerance(config)
        self._trainer: Any = None
        self._engines: Any = None

    def connect(self, trainer: TrainerHandle, engines: EngineGroup) -> None:
        self._trainer, self._engines = trainer, engines

    def push(self, version: int) -> Receipt:
        if self._trainer is None:
            raise SyncError("push before connect")
        started, phases = time.perf_counter(), dict[str, float]()
        former = self._engines.versions()
        manifest, proofs = self.deliver(self._trainer, self._engines, version, phases)
        phases.update(self._engines.seconds)
        try:
            self._require_equal(manifest, proofs)
            with _timed(phases, "canary"):
                proofs = self._with_canary(proofs)
            self._require_close(proofs)
        except Interrupted:
            self._back(version, former)
            raise
        except VimeError as error:
            raise SyncError(
                f"weights version {version} not committed: {error}; {self._back(version, former)}"
            ) from error
        self.committed(version)
        seconds = time.perf_counter() - started
        return Receipt(version, manifest.digest, manifest.names, manifest.nbytes, seconds, tuple(proofs), phases)

    def close(self) -> None:
        self._trainer = self._engines = None

    # what a sync that carries bytes in another way says for itself --------------------------------------------
    @abc.abstractmethod
    def deliver(
        self, trainer: Any, engines: Any, version: int, phases: dict[str, float]
    ) -> tuple[Manifest, list[EngineProof]]:
        """Get the trainer's weights into every engine's model: what was sent, and what each engine has.

        Raises:
            SyncError: all engines are at their old version.
        """

    def committed(self, version: int) -> None:
        """``version`` is what all engines serve from here on."""

    def _back(self, version: int, former: Sequence[int]) -> str:
        """Take the engines back; what became of it."""
        try:
            self._engines.rollback(version, former)
        except VimeError as error:
            return f"going back failed too: {error}"
        return f"the engines are back at {sorted(set(former))}"

    def _require_equal(self, manifest: Manifest, proofs: Sequence[EngineProof]) -> None:
        want = (manifest.version, manifest.digest, manifest.names)
        for proof in proofs:
            have = (proof.version, proof.digest, proof.names)
            if have != want:
                raise SyncError(f"{proof.engine} has (version, digest, names) {have}, the trainer sent {want}")

    def _with_canary(self, proofs: Sequence[EngineProof]) -> list[EngineProof]:
        tokens = self._engines.canary
        mine = list(self._trainer.score(tokens))
        scores = self._engines.score(tokens)
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
