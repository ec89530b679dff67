"""What vime-ascend adds to vime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vime_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from vime_core import Config
    from vime_core.api import DeviceBackend, Topology, WeightSync
    from vime_core.plugin import Options, Registry

#: how a run's configuration names the device once it is settled
DEVICE = "ascend/ascend"


@hookimpl
def vime_register_device_backends(registry: Registry[type[DeviceBackend]]) -> None:
    registry.add(
        "ascend",
        "vime_ascend.backend:AscendBackend",
        summary="Ascend NPUs: torch_npu, HCCL",
        priority=50,
        available="vime_ascend.probe:present",
    )


@hookimpl
def vime_register_weight_syncs(registry: Registry[type[WeightSync]]) -> None:
    registry.add("hccl", "vime_ascend.sync.hccl:HcclSync", summary="buckets from NPU to NPU by HCCL")
    registry.add(
        "npu_ipc", "vime_ascend.sync.ipc:NpuIpcSync", summary="buckets in device memory that two processes share"
    )
    registry.add("stream", "vime_ascend.sync.gloo:StreamGlooSync", summary="the same buckets over gloo, without an NPU")


@hookimpl
def vime_choose_weight_sync(topology: Topology) -> str | None:
    if topology.device_type != "npu" or topology.external_engines:
        return None
    return "npu_ipc" if topology.colocated else "hccl"


@hookimpl
def vime_register_options(options: Options) -> None:
    from vime_ascend.config import AscendOptions

    options.add(AscendOptions)


@hookimpl
def vime_configure(config: Config) -> None:
    if config.cluster.device not in (DEVICE, "ascend"):
        return
    from vime_ascend.flags import violations
    from vime_core.api import ConfigError

    found = violations(config)
    if found:
        raise ConfigError(found)


@hookimpl
def vime_worker_environment(role: str) -> Mapping[str, str]:
    """vLLM before 0.32 is served by this plugin, on any device."""
    return {"VIME_OLDER_VLLM": "vime_ascend.older_vllm"} if role == "engine" else {}


@hookimpl
def vime_process_started(role: str) -> None:
    from vime_ascend.process import started

    started(role)
