"""The driver's handle on the teacher."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.inference.launch import NAMESPACE
from vime_core.inference.teacher_client import TeacherClientSpec
from vime_core.inference.teacher_spec import teacher_spec
from vime_core.runtime import Deadline, Interrupts, end_actor, gather, ray_works, settle

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config

#: calls that the actor takes at the same time
_CALLS = 1000


class TeacherHandle:
    """One teacher. Made by :meth:`launch`, usable after :meth:`wait`, ended by :meth:`shutdown`."""

    def __init__(self, config: Config, actor: Any, client_spec: TeacherClientSpec, stop: Interrupts) -> None:
        self.actor, self.client_spec, self.stop = actor, client_spec, stop
        self.seconds = config.cluster.start_timeout_secs
        self.pid = 0
        self._started = actor.start.remote(self.seconds)

    @classmethod
    def launch(
        cls, config: Config, device: DeviceBackend, plugins: Any, log_dir: Path, stop: Interrupts | None = None
    ) -> TeacherHandle:
        """Begin to start it, beside everything else. Ray must be up. ``stop`` gives :meth:`wait` up.

        Raises:
            ConfigError: as for engines; nothing is started.
        """
        import ray

        from vime_core.inference.teacher import teacher_actor

        spec = teacher_spec(config, device)
        environment = {**spec.environment, **plugins.worker_environment("engine", config)}
        spec = dataclasses.replace(spec, environment=environment)
        name, log = f"vime-{uuid.uuid4().hex[:8]}-teacher", (log_dir / "teacher.log").absolute()
        options = {
            **device.ray_options(spec.tensor_parallel_size),
            "name": name,
            "namespace": NAMESPACE,
            "max_concurrency": _CALLS,
            "runtime_env": {"env_vars": environment},
        }
        actor: Any = ray.remote(teacher_actor()).options(**options).remote(plugins.lock(), spec, log)
        return cls(config, actor, TeacherClientSpec((name, NAMESPACE), str(log)), stop or Interrupts())

    def wait(self) -> TeacherClientSpec:
        """Until it can read; what reaches it from the rollout process.

        Raises:
            EngineError: it did not come up; the message ends with the first error in its log.
        """
        (started,) = gather(["teacher"], [self._started], self.stop.within(self.seconds + 10.0), "start")
        self.pid = started.pid
        return self.client_spec

    def shutdown(self, deadline: float = 20.0) -> None:
        """End its process. Idempotent."""
        actor, self.actor = self.actor, None
        if actor is None or not ray_works():
            return
        settle(["teacher"], [actor.shutdown.remote()], Deadline(deadline), "shutdown")
        end_actor(actor)
