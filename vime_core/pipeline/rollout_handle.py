"""The driver's handle on the rollout stage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.config import to_plain
from vime_core.pipeline.actors import RolloutActor
from vime_core.pipeline.rollout_deadline import RolloutDeadline
from vime_core.runtime import actor_environment, end_actor, get

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config
    from vime_core.runtime import Interrupts


@dataclass(frozen=True)
class Rollout:
    """What one step of sampling gave. ``batch`` is a reference: the driver never holds the tokens."""

    batch: Any
    metrics: dict[str, float]
    samples: list[dict[str, Any]]


class RolloutHandle:
    """One rollout process."""

    def __init__(self, config: Config, actor: Any, stop: Interrupts) -> None:
        self.config, self.actor, self.stop = config, actor, stop
        self.deadline, self._eval_samples = RolloutDeadline(config), 0

    @classmethod
    def launch(
        cls,
        config: Config,
        device: DeviceBackend,
        plugins: Any,
        state: Mapping[str, Any] | None,
        stop: Interrupts,
    ) -> RolloutHandle:
        import ray

        environment = actor_environment(device, plugins, "rollout", config)
        actor = ray.remote(RolloutActor).options(num_cpus=1, runtime_env={"env_vars": environment})
        return cls(config, actor.remote(to_plain(config), plugins.lock(), state), stop)

    def setup(self) -> Mapping[str, int]:
        """Read and check the data; ``{"prompts_per_epoch": n, "eval_samples": n}``."""
        deadline = self.stop.within(self.config.cluster.start_timeout_secs)
        facts: Mapping[str, int] = get(self.actor.setup.remote(), deadline, "setup of the rollout worker")
        self._eval_samples = facts["eval_samples"]
        return facts

    def connect(self, client_spec: Any, teacher_spec: Any | None = None) -> None:
        """Give the worker its engines, and the teacher if there is one."""
        what = "connection of the rollout worker to the engines"
        get(self.actor.connect.remote(client_spec, teacher_spec), self.stop.within(60.0), what)

    def rollout(self, step: int) -> Rollout:
        limit, begun = self.deadline.of_step(), time.monotonic()
        what = f"rollout of step {step} (allowed: {limit.why})"
        done = Rollout(*get(self.actor.rollout.remote(step), self.stop.within(limit.seconds), what))
        mean = done.metrics.get("rollout/response_len/mean", 0.0)
        self.deadline.measured(mean * self.config.samples_per_step, time.monotonic() - begun)
        return done

    def evaluate(self, step: int) -> dict[str, float]:
        limit = self.deadline.of_evaluation(self._eval_samples)
        what = f"evaluation at step {step} (allowed: {limit.why})"
        return get(self.actor.evaluate.remote(step), self.stop.within(limit.seconds), what)

    def state(self) -> dict[str, Any]:
        return get(self.actor.state.remote(), self.stop.within(60.0), "state of the data buffer")

    def shutdown(self) -> None:
        end_actor(self.actor)
