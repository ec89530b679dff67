"""Weight sync: a transaction that ends in a receipt."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Topology:
    """Where trainer and engines are, as far as the choice of a sync needs it."""

    device_type: str
    trainer_ranks: int
    engines: int
    nodes: int
    colocated: bool
    external_engines: bool


@dataclass(frozen=True)
class EngineProof:
    """What one engine proves about one update.

    Attributes:
        engine: address or name of the engine.
        version: weight version that the engine serves after the update.
        digest: hex digest, by the receiver, of the bytes it received.
        names: number of Hugging Face tensor names it received and loaded.
        canary_gap: max |log-prob(engine) - log-prob(trainer)| over the canary prompt, natural log; None before the
            trainer's numbers are known to whoever built the proof.
    """

    engine: str
    version: int
    digest: str
    names: int
    canary_gap: float | None = None


@dataclass(frozen=True)
class Receipt:
    """Proof of a committed sync. ``digest`` and ``names`` are the sender's; every engine's must be equal to them."""

    version: int
    digest: str
    names: int
    nbytes: int
    seconds: float
    engines: tuple[EngineProof, ...]
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def canary_gap(self) -> float:
        """Largest canary gap over the engines."""
        gaps = [p.canary_gap for p in self.engines if p.canary_gap is not None]
        return max(gaps) if gaps else float("nan")

    def line(self) -> str:
        """One line for the progress view."""
        gb = self.nbytes / 1e9
        return (
            f"v{self.version} {self.names} tensors {gb:.3f} GB in {self.seconds:.2f}s "
            f"digest {self.digest[:8]} x{len(self.engines)} canary {self.canary_gap:.1e}"
        )


class WeightSync(abc.ABC):
    """Carries weights from trainer ranks to engines. One object lives in the driver for the whole run.

    ``trainer`` is the driver's handle on the trainer ranks and ``engines`` its handle on the engines; their public
    methods are all that a sync may use.
    """

    #: string target of the trainer's end, called once with (configuration, name of the sync)
    publisher: ClassVar[str] = "vime_core.weights.transports.host:make_publisher"
    #: string target of the engine's end: a function of (manifest, rank), or a class made once a worker and then called
    receiver: ClassVar[str] = "vime_core.weights.transports.host:HostReceiver"
    #: every trainer rank has a publisher, not rank 0 alone
    every_rank_sends: ClassVar[bool] = False

    @abc.abstractmethod
    def connect(self, trainer: Any, engines: Any) -> None: ...

    @abc.abstractmethod
    def push(self, version: int) -> Receipt:
        """Send the trainer's weights as ``version``.

        Raises:
            SyncError: nothing was committed; every engine serves the version it had.
        """

    @abc.abstractmethod
    def close(self) -> None: ...
