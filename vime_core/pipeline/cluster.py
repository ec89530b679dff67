"""Ray: started and ended by the command, or a running cluster by address."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vime_core.errors import UsageError

if TYPE_CHECKING:
    from vime_core.config.sections import Config
    from vime_core.interfaces.device import DeviceBackend

#: actors beside trainer ranks and engines: the rollout worker
_OTHERS = 1


def demand(config: Config, device: DeviceBackend) -> dict[str, float]:
    """Ray resources that a run needs, by name, as the device backend asks for them."""
    slots = config.trainer_ranks
    if config.needs_engines and not config.cluster.colocate:
        slots += config.num_engines * config.cluster.rollout_num_gpus_per_engine
    options = device.ray_options(1)
    wanted = dict(options.get("resources", {}))
    for key, name in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        if options.get(key):
            wanted[name] = options[key]
    total = {name: amount * slots for name, amount in wanted.items()}
    total["CPU"] = total.get("CPU", 0) + _OTHERS
    return total


@contextmanager
def cluster(config: Config, device: DeviceBackend) -> Iterator[None]:
    """Ray for the length of a run.

    Raises:
        UsageError: the cluster has too little of a resource; nothing has been started in it.
    """
    import logging

    import ray

    need = demand(config, device)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "vime"}
    if config.cluster.ray_address:
        ray.init(address=config.cluster.ray_address, **common)
    else:
        # On one machine a CPU slot is a process, so there may be more of them than cores.
        cpus = max(os.cpu_count() or 1, int(need["CPU"]))
        ray.init(num_cpus=cpus, include_dashboard=False, **common)
    try:
        _require(need, ray.cluster_resources(), config.cluster.ray_address)
        yield
    finally:
        ray.shutdown()


def _require(need: Mapping[str, float], have: Mapping[str, float], address: str | None) -> None:
    short = [
        f"{name}: {amount:g} needed, {have.get(name, 0):g} there"
        for name, amount in need.items()
        if have.get(name, 0) < amount
    ]
    if short:
        where = f"the Ray cluster at {address}" if address else "this machine"
        raise UsageError(
            f"{where} has too few resources for the run ({'; '.join(short)}): lower --actor-num-gpus-per-node or "
            "--rollout-num-gpus, or add nodes"
        )


def actor_environment(device: DeviceBackend, plugins: Any, role: str, config: Config) -> dict[str, str]:
    """Environment of a worker process, complete before its first import: the device's, then the plugins'."""
    return {**device.environment(role), **plugins.worker_environment(role, config)}
