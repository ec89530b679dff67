"""Which engines a run has, where they live, and how they are reached."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError
from vime_core.data import generation_deadline
from vime_core.inference import actors
from vime_core.inference.direct_client import DirectClientSpec
from vime_core.inference.http_client import HttpClientSpec
from vime_core.inference.node_placement import NodePlacement, shared_placement
from vime_core.inference.router import Router
from vime_core.inference.spec import EngineSpec, engine_specs
from vime_core.inference.vllm.server_key import run_key
from vime_core.weights import RECEIVER, RECEIVER_VARIABLE

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config
    from vime_core.inference.client import ClientSpec

#: Ray namespace of the actors, so that another process of the run finds them by name
NAMESPACE = "vime"

#: calls that an actor takes at the same time: streams of replies and control calls beside them
_CALLS = 1000


def _new_tag() -> str:
    return f"vime-{uuid.uuid4().hex[:8]}"


@dataclasses.dataclass(frozen=True)
class EngineLaunch:
    """The start of one run's engines.

    Attributes:
        hf_folder: Hugging Face folder that they load as version 0.
        plugins: the run's loaded plugins (``lock()`` and ``worker_environment(role, config)`` are used).
        log_dir: folder for one log an engine and one of the router.
        placements: of the trainer ranks whose devices the engines share; none: devices of their own.
        tag: tells them from other runs' engines in the same cluster.
    """

    config: Config
    device: DeviceBackend
    hf_folder: str
    plugins: Any
    log_dir: Path
    placements: Sequence[NodePlacement] = ()
    tag: str = dataclasses.field(default_factory=_new_tag)

    @functools.cached_property
    def key(self) -> str:
        """What engines and router ask for."""
        return run_key(self.config.engine.engine_key_file)

    @property
    def transport(self) -> str:
        """ "auto" is direct for exactly one engine of our own: there is nothing to route and no HTTP to pay for."""
        section, wish = self.config.engine, self.config.engine.engine_transport
        lone = self.config.num_engines == 1 and not section.vllm_router_ip
        if wish == "direct" and not lone:
            raise ConfigError(
                "--engine-transport direct works with exactly one engine that vime starts and no router: "
                "leave it at auto"
            )
        if wish != "auto":
            return wish
        return "direct" if lone else "router"

    def create(self) -> tuple[list[str], list[Any]]:
        """Create the actors; names for messages, and handles. Nothing is awaited."""
        external = self.config.engine.rollout_external_engine_addrs
        if external:
            return [f"engine at {address}" for address in external], [self._external(a) for a in external]
        specs = engine_specs(self.config, self.device, self.hf_folder)
        return [spec.name for spec in specs], [self._own(spec) for spec in specs]

    def router(self, engines: Sequence[str]) -> Router | None:
        """The router in front of the engines, started or found."""
        section = self.config.engine
        if self.transport == "direct":
            return None
        if section.vllm_router_ip:
            router = Router.external(f"http://{section.vllm_router_ip}:{section.vllm_router_port or 80}", self.key)
            for engine in engines:
                router.add(engine)
            return router
        log, deadline = self.log_dir / "router.log", self.config.cluster.start_timeout_secs
        return Router.start(engines, self.config.router, log, self.key, deadline)

    def client_spec(self, engines: Sequence[str], router: Router | None) -> ClientSpec:
        section, timeout = self.config.engine, generation_deadline(self.config)
        if router is None:
            return DirectClientSpec((self._name(0), NAMESPACE), timeout)
        concurrency = section.vllm_server_concurrency * max(len(engines), 1)
        return HttpClientSpec(router.url, tuple(engines), concurrency, section.engine_retries, timeout, self.key)

    def logs(self) -> list[Path | None]:
        """Of each engine; None for those that somebody else started."""
        external = self.config.engine.rollout_external_engine_addrs
        return [None] * len(external) if external else [self._log(i) for i in range(self.config.num_engines)]

    def _log(self, index: int) -> Path:
        return (self.log_dir / f"engine-{index}.log").absolute()

    def _own(self, spec: EngineSpec) -> Any:
        import ray

        size, device = spec.tensor_parallel_size, self.device
        place = shared_placement(self.placements, spec.index, size) if self.placements else None
        environment = {
            **spec.environment,
            **(place.environment(device) if place is not None else {}),
            RECEIVER_VARIABLE: self._receiver(),
            **self.plugins.worker_environment("engine", self.config),
        }
        spec = dataclasses.replace(spec, environment=environment)
        options = {
            **(place.options(device) if place is not None else device.ray_options(size)),
            "name": self._name(spec.index),
            "namespace": NAMESPACE,
            "max_concurrency": _CALLS,
            "runtime_env": {"env_vars": environment},
        }
        log, lock = self._log(spec.index), self.plugins.lock()
        if self.transport == "direct":
            return ray.remote(actors.direct_actor()).options(**options).remote(lock, spec, log)
        deadline = self.config.sync.vllm_weight_transfer_timeout_sec
        return ray.remote(actors.server_actor()).options(**options).remote(lock, spec, log, deadline, self.key)

    def _receiver(self) -> str:
        name = self.config.sync.weight_sync
        return self.plugins.weight_syncs.resolve(name).receiver if name else RECEIVER

    def _external(self, address: str) -> Any:
        import ray

        url = address if "://" in address else f"http://{address}"
        deadline = self.config.sync.vllm_weight_transfer_timeout_sec
        remote: Any = ray.remote(actors.external_actor()).options(num_cpus=0, max_concurrency=_CALLS)
        return remote.remote(f"engine at {address}", url.rstrip("/"), deadline, self.key)

    def _name(self, index: int) -> str:
        return f"{self.tag}-engine-{index}"
