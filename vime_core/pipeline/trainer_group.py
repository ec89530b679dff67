"""The driver's handle on the trainer ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.config import to_plain
from vime_core.pipeline.actors import TrainerActor
from vime_core.runtime import actor_environment, end_actor, get

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config
    from vime_core.inference import NodePlacement
    from vime_core.runtime import Interrupts
    from vime_core.training import Part


class TrainerGroup:
    """Calls go to all ranks at once, because each of them is a collective; rank 0 answers for the group."""

    def __init__(self, config: Config, ranks: Sequence[Any], stop: Interrupts) -> None:
        self.config, self.ranks, self.stop = config, ranks, stop
        self.names = [f"trainer rank {rank}" for rank in range(len(ranks))]
        self.info: Mapping[str, Any] = {}
        self._pids: list[Any] = []

    @classmethod
    def launch(
        cls, config: Config, device: DeviceBackend, device_name: str, plugins: Any, stop: Interrupts
    ) -> TrainerGroup:
        """Create the rank processes; returns at once."""
        import ray

        options = {
            **device.ray_options(1),
            "runtime_env": {"env_vars": actor_environment(device, plugins, "trainer", config)},
            "max_concurrency": 1,
        }
        plain, lock = to_plain(config), plugins.lock()
        actor = ray.remote(TrainerActor)
        ranks = [actor.options(**options).remote(plain, lock, i, device_name) for i in range(config.trainer_ranks)]
        made = cls(config, ranks, stop)
        made._pids = [rank.pid.remote() for rank in ranks]  # type: ignore[attr-defined]  # Ray adds `remote`
        for rank in ranks:
            rank.load.remote()  # type: ignore[attr-defined]
        return made

    def begin_setup(self, folder: str, resume: str | None, total_steps: int, losses: Path | None = None) -> list[Any]:
        """Start building the model on every rank; :meth:`finish_setup` waits for it. Arguments: see the worker's."""
        deadline = self.stop.within(self.config.cluster.start_timeout_secs)
        pids = get(self._pids, deadline, "start of the trainer ranks", self.names)
        self.names = [f"{name} (pid {pid}, output logs/ray/*-{pid}.*)" for name, pid in zip(self.names, pids)]
        address = get(self.ranks[0].address.remote(), deadline, "address of trainer rank 0")
        kept = None if losses is None else str(losses)
        return [rank.setup.remote(address, folder, resume, total_steps, kept) for rank in self.ranks]

    def finish_setup(self, started: Sequence[Any]) -> Mapping[str, Any]:
        deadline = self.stop.within(self.config.cluster.start_timeout_secs)
        infos = get(started, deadline, "setup of the trainer ranks", self.names)
        self.info = infos[0]
        return self.info

    def placements(self) -> list[NodePlacement]:
        """Where each rank lives."""
        return self._all("place", self.config.cluster.start_timeout_secs, "places of the trainer ranks")

    def offload(self, parts: Sequence[Part]) -> int:
        """Give the device memory of ``parts`` to others, until :meth:`onload`; bytes given up, all ranks."""
        return sum(self._all("offload", self._moving, f"offload of the trainer's {' and '.join(parts)}", parts))

    def onload(self, parts: Sequence[Part]) -> int:
        """Take it again, with what was in it; bytes taken, all ranks."""
        return sum(self._all("onload", self._moving, f"return of the trainer's {' and '.join(parts)}", parts))

    @property
    def _moving(self) -> float:
        """As many bytes as a sync and more, so no less than its deadline."""
        return max(self.config.sync.vllm_weight_transfer_timeout_sec, self.config.cluster.start_timeout_secs)

    def train(self, step: int, batch: Any) -> dict[str, float]:
        """One rollout step of training; ``batch`` is a reference to a StepBatch in the object store."""
        answers = self._all("train", self.config.train.train_timeout_secs, f"training of step {step}", step, batch)
        return answers[-1]  # the last pipeline stage computed the loss; ranks agree on the rest

    def open(self, terms: Mapping[str, Any]) -> None:
        """Tell the publishers where and with whom they will meet in the next :meth:`publish`."""
        seconds = self.config.sync.vllm_weight_transfer_timeout_sec
        self._all("open", seconds, "terms of the weight sync", dict(terms))

    def publish(self, version: int) -> Any:
        """Make the weights available as ``version``; the manifest of rank 0."""
        seconds = self.config.sync.vllm_weight_transfer_timeout_sec
        return self._all("publish", seconds, f"export of weights version {version}", version)[0]

    def score(self, tokens: list[int]) -> list[float]:
        """Log-probs [len(tokens) - 1] of tokens[1:] given their prefixes, at temperature 1."""
        answers = self._all("score", self.config.train.train_timeout_secs, "log-probs of the canary", tokens)
        return next(answer for answer in answers if answer is not None)

    def save(self, folder: str) -> int:
        """Write every rank's part of a checkpoint; bytes written."""
        return sum(self._all("save", self.config.train.train_timeout_secs, f"checkpoint {folder}", folder))

    def save_hf(self, folder: str) -> None:
        self._all("save_hf", self.config.train.train_timeout_secs, f"export to {folder}", folder)

    def shutdown(self) -> None:
        for rank in self.ranks:
            end_actor(rank)

    def _all(self, method: str, seconds: float, what: str, *arguments: Any) -> list[Any]:
        refs = [getattr(rank, method).remote(*arguments) for rank in self.ranks]
        return get(refs, self.stop.within(seconds), what, self.names)
