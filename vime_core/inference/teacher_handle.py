"""The driver's handle on the teacher."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.inference.launch import NAMESPACE
from vime_core.inference.teacher_client import TeacherClientSpec
from vime_core.inference.teacher_spec import teacher_spec
from vime_core.runtime import Check, gather, never, settle

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config

#: calls that the actor takes at the same time
_CALLS = 1000


class TeacherHandle:
    """One teacher. Made by :meth:`launch`, usable after :meth:`wait`, ended by :meth:`shutdown`."""

    def __init__(self, actor: Any, started: Any, deadline: float, client_spec: TeacherClientSpec) -> None:
        self.actor, self.deadline, self.client_spec = actor, deadline, client_spec
        self.pid = 0
        self._started = started

    @classmethod
    def launch(cls, config: Config, device: DeviceBackend, plugins: Any, log_dir: Path) -> TeacherHandle:
        """Begin to start it, beside everything else. Ray must be up.

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
        deadline = config.cluster.start_timeout_secs
        return cls(actor, actor.start.remote(deadline), deadline, TeacherClientSpec((name, NAMESPACE), str(log)))

    def wait(self, check: Check = never) -> TeacherClientSpec:
        """Until it can read; what reaches it from the rollout process.

        Raises:
            EngineError: it did not come up; the message ends with the last lines of its log.
        """
        (info,) = gather(["teacher"], [self._started], self.deadline + 10.0, "start", check)
        self.pid = int(info["pid"])
        return self.client_spec

    def shutdown(self, deadline: float = 20.0) -> None:
        """End its process. Idempotent."""
        import ray

        actor, self.actor = self.actor, None
        if actor is None or not ray.is_initialized():
            return
        settle(["teacher"], [actor.shutdown.remote()], deadline, "shutdown")
        ray.kill(actor, no_restart=True)
