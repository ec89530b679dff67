"""What a plan asks of the device: by its class alone where it is not here, so that a laptop can plan a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_cli.plan.machine import Machine
from vime_cli.units import GIB
from vime_core.api import PluginError

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config


@dataclass(frozen=True)
class Probed:
    """device: bound to the configuration, None where it is not here. arguments: its own for engines."""

    machine: Machine
    device: DeviceBackend | None
    supports_colocate: bool
    arguments: Mapping[str, Any]


def probe(config: Config, plugins: Any, memory_gib: float | None = None, per_node: int | None = None) -> Probed:
    """Ask the device that the configuration would choose.

    Args:
        memory_gib: memory of a device (of a node on a device of process slots), in place of the device's answer.
        per_node: devices of a node.

    Raises:
        PluginError: no such device.
    """
    provider, absent = _provider(config, plugins)
    kind = provider.load()
    device = None if absent else kind().bind(config)
    shared = device is not None and set(device.ray_options(1)) <= {"num_cpus"}
    memory, source = _memory(device, memory_gib, absent)
    machine = Machine(
        device=provider.name,
        memory=memory,
        source=source,
        shared=shared,
        per_node=per_node or _per_node(config, device, shared),
        sleeps=kind.supports_sleep,
    )
    arguments = device.engine_arguments() if device is not None else {}
    return Probed(machine, device, kind.supports_colocate, arguments)


def _provider(config: Config, plugins: Any) -> tuple[Any, str]:
    """The device's provider, and why it cannot be asked here (empty: it can)."""
    try:
        provider = plugins.choose_device(config.cluster.device)
    except PluginError as error:
        asked = [p for p in plugins.devices if p.plugin in _requested(config)]
        if config.cluster.device is not None or not asked:
            raise
        return max(asked, key=lambda p: p.priority), str(error).splitlines()[0]
    here, reason = provider.ask()
    return provider, "" if here else reason.splitlines()[0] if reason else "it is not here"


def _requested(config: Config) -> set[str]:
    return {spec.partition("[")[0] for spec in config.plugin_specs}


def _memory(device: DeviceBackend | None, given: float | None, absent: str) -> tuple[int | None, str]:
    if given is not None:
        return int(given * GIB), "--memory-gib"
    if device is None:
        return None, absent
    return device.memory().total, "asked of the device"


def _per_node(config: Config, device: DeviceBackend | None, shared: bool) -> int:
    ranks = config.cluster.actor_num_gpus_per_node
    if shared:  # one machine takes any number of processes
        engines = config.num_engines * config.cluster.rollout_num_gpus_per_engine
        return ranks if config.cluster.actor_num_nodes > 1 else ranks + engines + config.trainer_ranks
    return max(ranks, device.count() if device is not None else 1)
