"""Ray: started and ended by the command, or a running cluster by address."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import UsageError
from vime_core.runtime.janitor import children, reaping
from vime_core.runtime.ray_daemons import watching
from vime_core.runtime.ray_token import require_secluded, require_token, secluded
from vime_core.runtime.scratch import scratch, variables

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config

#: seconds in which a running cluster must take a connection
_CONNECT = 10.0
#: actors beside trainer ranks and engines: the rollout worker
_OTHERS = 1


def demand(config: Config, device: DeviceBackend) -> dict[str, float]:
    """Ray resources that a run needs, by name, as the device backend asks for them."""
    slots = config.trainer_ranks
    if config.needs_engines and not config.cluster.colocate:
        slots += config.num_engines * config.cluster.rollout_num_gpus_per_engine
    slots += config.cluster.rollout_num_gpus_per_engine * config.teacher_engine
    options = device.ray_options(1)
    wanted = dict(options.get("resources", {}))
    for key, name in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        if options.get(key):
            wanted[name] = options[key]
    total = {name: amount * slots for name, amount in wanted.items()}
    total["CPU"] = total.get("CPU", 0) + _OTHERS
    return total


@contextlib.contextmanager
def cluster(config: Config, device: DeviceBackend, logs: Path) -> Iterator[None]:
    """Ray for the length of a run; ``logs`` gets its workers' output if the run fails.

    Raises:
        UsageError: no cluster at the address, one that takes calls from everybody, or too little of a resource;
            nothing has been started in it.
    """
    import logging

    import ray

    need = demand(config, device)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "vime"}
    with contextlib.ExitStack() as ending:
        if config.cluster.ray_address:
            _join(config.cluster.ray_address, common)
        else:
            folder = ending.enter_context(scratch(logs))
            ending.enter_context(secluded(folder))
            before = children()
            # On one machine a CPU slot is a process, so there may be more of them than cores.
            cpus = max(os.cpu_count() or 1, int(need["CPU"]))
            environment = {"env_vars": variables(folder, device.collective)}
            ray.init(num_cpus=cpus, include_dashboard=False, _temp_dir=str(folder), runtime_env=environment, **common)
            ending.enter_context(reaping(sorted(children() - before), folder))
        ending.callback(ray.shutdown)
        if not config.cluster.ray_address:
            require_secluded()
            ending.enter_context(watching(logs))
        _require(need, ray.cluster_resources(), config.cluster.ray_address)
        yield


def _join(address: str, common: Mapping[str, Any]) -> None:
    """Ray itself would try a wrong address for minutes, so somebody must be listening there first."""
    import ray

    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit() and "/" not in host:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT).close()
            require_token(address)
        ray.init(address=address, **common)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--ray-address {address}: no Ray cluster can be joined there: {reason}") from error


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
    threads = {"trainer": config.cluster.trainer_cpu_threads}.get(role, 1)
    own = {"OMP_NUM_THREADS": str(threads)}
    return {**device.environment(role), **own, **plugins.worker_environment(role, config)}
