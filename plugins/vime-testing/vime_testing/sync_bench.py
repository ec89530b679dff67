"""A trainer and engines for a weight sync: every part of a run's sync is the real one, but a worker's model is a
dictionary.

The trainer is an actor with the run's publisher; each engine is an actor with the transaction that all engines share
(:class:`vime_core.inference.update.UpdatableEngine`); the driver holds them by the run's own handle
(:class:`vime_core.inference.group.EngineGroup`). Faults can be ordered, so that it is
known what a sync should have said.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vime_core.plugin import load_target
from vime_testing.sync_engine import BenchEngine, Faults, Weights, answer_of

if TYPE_CHECKING:
    from vime_core.config import Config
    from vime_core.inference import EngineGroup

#: where a worker of the core's engines finds what a manifest describes
RECEIVER = "vime_core.weights.transports.host:HostReceiver"
#: the trainer's end: called with the configuration and the name of the sync
PUBLISHER = "vime_core.weights.transports.host:make_publisher"
CANARY = (3, 1, 4, 1, 5)
_CALL = 60.0


class BenchTrainer:
    """Trainer rank 0 without a model: publishes what it was told to have."""

    def __init__(self, config: Config, publisher: str) -> None:
        self._publisher = load_target(publisher)(config, config.sync.weight_sync or "")
        self._weights: Weights = {}

    def load(self, weights: Weights) -> None:
        self._weights = dict(weights)

    def publish(self, version: int) -> Any:
        return self._publisher.publish(iter(self._weights.items()), version)

    def score(self, tokens: list[int]) -> list[float]:
        return answer_of(self._weights, tokens)

    def other(self, method: str, arguments: Sequence[Any]) -> Any:
        """A method of a publisher that has more than the core's."""
        return getattr(self._publisher, method)(*arguments)

    def close(self) -> None:
        self._publisher.close()


class TrainerHandle:
    """The driver's handle; what a run's has, and methods of a publisher of another kind."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def publish(self, version: int) -> Any:
        return self._get("publish", version)

    def score(self, tokens: list[int]) -> list[float]:
        scores: list[float] = self._get("score", tokens)
        return scores

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self._get("other", name, arguments)

    def load(self, weights: Weights) -> None:
        """Give the trainer other weights."""
        self._get("load", weights)

    def _get(self, method: str, *arguments: Any) -> Any:
        import ray

        return ray.get(getattr(self._actor, method).remote(*arguments), timeout=_CALL)


class SyncBench:
    """Start it, use ``trainer`` and ``engines``, close it.

    Args:
        weights: name -> tensor that the model consists of; each engine begins with zeros of these shapes.
        engines: how many; all on this machine.
        receiver, publisher: string targets of both ends; the core's by default.
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        *,
        engines: int = 2,
        receiver: str = RECEIVER,
        publisher: str = PUBLISHER,
    ) -> None:
        self._own_ray = _start_ray()
        self._trainer, self._actors = self._create(config, weights, engines, receiver, publisher)
        self.trainer = TrainerHandle(self._trainer)
        self.engines = self._group(config)
        self.trainer.load(weights)

    def weights(self, engine: int) -> Weights:
        """What the model of an engine holds."""
        import ray

        held: Weights = ray.get(self._actors[engine].weights.remote(), timeout=_CALL)
        return held

    def refusals(self) -> list[str]:
        """Why each engine answers nothing; empty for one that answers."""
        return [self._refusal(actor) for actor in self._actors]

    def order(self, engine: int, **faults: Any) -> None:
        """Let an engine go wrong; see :class:`vime_testing.sync_engine.Faults`. No keyword: be well again."""
        import ray

        ray.get(self._actors[engine].order.remote(Faults(**faults)), timeout=_CALL)

    def close(self) -> None:
        import ray

        for actor in [self._trainer, *self._actors]:
            ray.kill(actor, no_restart=True)
        if self._own_ray:
            ray.shutdown()

    # ---------------------------------------------------------------------------------------------------------
    def _refusal(self, actor: Any) -> str:
        import ray

        try:
            ray.get(actor.score.remote(list(CANARY)), timeout=_CALL)
        except ray.exceptions.RayTaskError as error:
            return str(error.cause)
        return ""

    def _create(
        self, config: Config, weights: Weights, engines: int, receiver: str, publisher: str
    ) -> tuple[Any, list[Any]]:
        import ray

        options: Mapping[str, Any] = {"num_cpus": 0, "runtime_env": {"env_vars": _environment()}}
        trainer = ray.remote(BenchTrainer).options(**options).remote(config, publisher)
        kind = ray.remote(BenchEngine)
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        actors = [kind.options(**options).remote(f"engine {i}", shapes, receiver) for i in range(engines)]
        return trainer, actors

    def _group(self, config: Config) -> EngineGroup:
        import ray

        from vime_core.inference import EngineGroup

        started = ray.get([actor.started.remote() for actor in self._actors], timeout=_CALL)
        group = EngineGroup([f"engine {i}" for i in range(len(started))], self._actors, started, config)
        group.canary = list(CANARY)
        return group


def _start_ray() -> bool:
    import ray

    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return True


def _environment() -> dict[str, str]:
    import sys

    path = os.pathsep.join(part for part in sys.path if part)
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
