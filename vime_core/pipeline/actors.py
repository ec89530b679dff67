"""The Ray actors. Shells only: they load the run's plugins before anything heavy is imported, then hand over."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.batch import StepBatch
    from vime_core.inference import NodePlacement
    from vime_core.observe import WarningLog
    from vime_core.training import Part


def _enter(
    role: str, lock: Sequence[Mapping[str, Any]], plain: Mapping[str, Any], rank: int | None = None
) -> tuple[Any, Any, WarningLog]:
    """First thing in every process: where warnings go, exactly the driver's plugins, their process hooks, the run's
    configuration."""
    from vime_core.config import from_plain
    from vime_core.observe import RunFolder, WarningLog
    from vime_core.plugin import Plugins

    name = role if rank is None else f"{role} rank {rank}"
    warnings = WarningLog.attach(RunFolder(Path(plain["run"]["run_dir"])).warnings, name)
    plugins = Plugins.from_lock(lock)
    plugins.process_started(role)
    config = from_plain(plain, plugins.options)
    plugins.configure(config)
    return plugins, config, warnings


class TrainerActor:
    """One trainer rank."""

    def __init__(self, plain: Mapping[str, Any], lock: Sequence[Mapping[str, Any]], rank: int, device: str) -> None:
        self.plugins, self.config, self.warnings = _enter("trainer", lock, plain, rank)
        self.rank, self.device = rank, device
        self.worker: Any = None

    def address(self) -> tuple[str, int]:
        """Where rank 0 will listen: loopback, or this node's address in a cluster of several; a port that is free
        now."""
        from vime_core.runtime import free_port, reachable_host

        host = reachable_host()
        return host, free_port(host)

    def pid(self) -> int:
        """Of this rank's process."""
        return os.getpid()

    def place(self) -> NodePlacement:
        """Node and devices of this rank."""
        from vime_core.inference import NodePlacement

        return NodePlacement.here()

    def load(self) -> None:
        """Bring in the heavy modules while other parts start; :meth:`setup` waits for it and needs nothing of it."""
        import vime_core.training.worker  # noqa: F401

    def setup(
        self, address: tuple[str, int], folder: str, resume: str | None, total_steps: int, losses: str | None
    ) -> dict[str, Any]:
        from vime_core.training import TrainerWorker

        device = self.plugins.choose_device(self.device).load()().bind(self.config)
        self.worker = TrainerWorker(self.config, self.plugins, device, self.rank)
        return self.worker.setup(f"{address[0]}:{address[1]}", folder, resume, total_steps, losses)

    def train(self, step: int, batch: StepBatch) -> dict[str, float]:
        try:
            return self.worker.train(step, batch)
        finally:
            self.warnings.write_counts()

    def open(self, terms: Mapping[str, Any]) -> None:
        self.worker.open(terms)

    def publish(self, version: int) -> Any:
        return self.worker.publish(version)

    def broadcast(self, version: int, world: int) -> None:
        self.worker.broadcast(version, world)

    def score(self, tokens: list[int]) -> list[float] | None:
        return self.worker.score(tokens)

    def offload(self, parts: Sequence[Part]) -> int:
        return self.worker.offload(parts)

    def onload(self, parts: Sequence[Part]) -> int:
        return self.worker.onload(parts)

    def save(self, folder: str) -> int:
        return self.worker.save(folder)

    def save_hf(self, folder: str) -> None:
        self.worker.save_hf(folder)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()


class RolloutActor:
    """The rollout stage: data buffer, generation, rewards, evaluation. Asynchronous; one call runs at a time."""

    def __init__(
        self, plain: Mapping[str, Any], lock: Sequence[Mapping[str, Any]], state: Mapping[str, Any] | None
    ) -> None:
        self.plugins, self.config, self.warnings = _enter("rollout", lock, plain)
        self.start_state = state
        self.worker: Any = None

    async def setup(self) -> dict[str, int]:
        from vime_core.rollout import RolloutWorker

        self.worker = RolloutWorker(self.config, self.plugins)
        if self.start_state is not None:
            self.worker.load_state(self.start_state)
        return {"prompts_per_epoch": self.worker.prompts_per_epoch, "eval_samples": self.worker.eval_samples}

    async def connect(self, client_spec: Any, teacher_spec: Any | None) -> None:
        self.worker.gate.attach(client_spec.connect())
        if teacher_spec is not None:
            self.worker.teacher.attach(teacher_spec.connect())

    async def rollout(self, step: int) -> tuple[Any, dict[str, float], list[dict[str, Any]]]:
        """(reference to the batch in the object store, metrics, rows for the sample dump)."""
        import ray

        try:
            result = await self.worker.rollout(step)
        finally:
            self.warnings.write_counts()
        return ray.put(result.batch), result.metrics, result.samples

    async def evaluate(self, step: int) -> dict[str, float]:
        try:
            return await self.worker.evaluate(step)
        finally:
            self.warnings.write_counts()

    async def state(self) -> dict[str, Any]:
        return self.worker.state()

    async def close(self) -> None:
        if self.worker is not None:
            await self.worker.close()
