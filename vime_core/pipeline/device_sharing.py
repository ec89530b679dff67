"""Whose turn it is on devices that trainer and engines share.

    sampling   engines awake                      trainer's memory in the host
       |  engines sleep, the trainer comes back
    training   engines asleep                     trainer whole: log-probs, updates, checkpoints
       |  optimizer and gradients go, engines take their weights' memory
    syncing    engines: weights, no KV cache      trainer: weights
       |  weights go, engines take their KV cache: now they can answer the sync's canary
    sampling   ...

Who needs the devices asks for the turn; where it has it already, nothing happens. At the start the trainer goes out
before the engines load. What has moved is noted only once it has, so after an error (a sync that was refused, a stop in
the middle) the notes say what is where, and an engine that was not woken answers nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from vime_core.inference import TAGS, Tag
from vime_core.training import PARTS, Part

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config
    from vime_core.inference import EngineGroup, NodePlacement
    from vime_core.pipeline.trainer_group import TrainerGroup


class DeviceSharing:
    """Of trainer and engines that have devices of their own: everybody always has the turn."""

    def before_engines(self, started: Sequence[Any]) -> Sequence[NodePlacement]:
        """Make room for engines that are about to load. started: the trainer's setup on its way.

        Returns:
            Placements of the trainer ranks that the engines share; none if they share none.
        """
        return ()

    def engines_are_up(self, engines: EngineGroup) -> None:
        """``engines`` are loaded and awake."""

    def sampling(self) -> None:
        """The engines are about to answer."""

    def training(self) -> None:
        """The trainer is about to work, and a sync follows before the engines answer again."""

    def saving(self) -> None:
        """The trainer is about to give out all it has; the engines go on afterwards with the weights that they have."""

    def syncing(self) -> None:
        """Weights are about to go from trainer to engines."""

    def metrics(self) -> Mapping[str, float]:
        """Under catalogue names, of the step that ends."""
        return {}


class SharedDevices(DeviceSharing):
    """Of trainer and engines on the same devices.

    Args:
        sleep_level: what engines do while it is the trainer's turn; None: they stay awake.
        offloads: the trainer's memory goes out while it is the engines' turn.
        timed: a context in which the time to hand devices over is counted.
    """

    def __init__(
        self,
        trainer: TrainerGroup,
        sleep_level: int | None,
        offloads: bool,
        timed: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._trainer, self._level, self._offloads, self._timed = trainer, sleep_level, offloads, timed
        self._engines: EngineGroup | None = None
        self._awake: set[Tag] = set()
        self._on_device: set[Part] = set(PARTS)
        self._freed: dict[Part, int] = {}

    def before_engines(self, started: Sequence[Any]) -> Sequence[NodePlacement]:
        if self._offloads:
            self._trainer.finish_setup(started)
            self._hold(())
        return self._trainer.placements()

    def engines_are_up(self, engines: EngineGroup) -> None:
        self._engines, self._awake = engines, set(TAGS)
        engines.before_score = self.sampling

    def sampling(self) -> None:
        self._hold(())
        self._wake(*TAGS)

    def training(self) -> None:
        self._trainers_turn(self._level)

    def saving(self) -> None:
        self._trainers_turn(None if self._level is None else 1)

    def syncing(self) -> None:
        if "kv_cache" in self._awake:
            self._sleep(self._level)
        self._hold(("weights",))
        self._wake("weights")

    def metrics(self) -> Mapping[str, float]:
        return {"perf/offload_bytes": float(sum(self._freed.values()))} if self._offloads else {}

    # moves ---------------------------------------------------------------------------------------------------
    def _trainers_turn(self, level: int | None) -> None:
        if self._awake == {"weights"}:  # a sync was given up; vLLM puts only whole engines to sleep
            self.sampling()
        self._sleep(level)
        self._hold(PARTS)

    def _sleep(self, level: int | None) -> None:
        if level is None or self._engines is None or not self._awake:
            return
        with self._timed():
            self._engines.sleep(level)
            self._awake.clear()

    def _wake(self, *tags: Tag) -> None:
        """One after another: weights have to be whole before requests can be taken."""
        for tag in tags:
            if self._engines is not None and tag not in self._awake:
                with self._timed():
                    self._engines.wake(tag)
                    self._awake.add(tag)

    def _hold(self, parts: Sequence[Part]) -> None:
        """The trainer has ``parts`` on the device, and nothing else; what goes makes room for what comes."""
        if not self._offloads:
            return
        for part in PARTS:
            if part in self._on_device and part not in parts:
                with self._timed():
                    self._freed[part] = self._trainer.offload([part])
                    self._on_device.discard(part)
        coming = [part for part in parts if part not in self._on_device]
        if coming:
            with self._timed():
                self._trainer.onload(coming)
                self._on_device.update(coming)


def device_sharing_of(
    config: Config, device: DeviceBackend, trainer: TrainerGroup, timed: Callable[[], AbstractContextManager[Any]]
) -> DeviceSharing:
    """As the configuration says, and the device where it says nothing. timed: as for :class:`SharedDevices`."""
    if not (config.cluster.colocate and config.needs_engines):
        return DeviceSharing()
    level = config.cluster.rollout_sleep_level if config.engines_sleep(device.supports_sleep) else None
    return SharedDevices(trainer, level, config.offloads_trainer(device.supports_sleep), timed)
