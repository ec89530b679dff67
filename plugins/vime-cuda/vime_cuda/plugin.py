"""What vime-cuda adds to vime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from vime_core import Config
    from vime_core.api import DeviceBackend, Topology, WeightSync
    from vime_core.plugin import Options, Registry

#: how a run's configuration names the device once it is settled
DEVICE = "cuda/cuda"


@hookimpl
def vime_register_device_backends(registry: Registry[type[DeviceBackend]]) -> None:
    registry.add(
        "cuda",
        "vime_cuda.backend:CudaBackend",
        summary="NVIDIA devices: NCCL, CUDA IPC",
        priority=40,
        available="vime_cuda.probe:present",
    )


@hookimpl
def vime_register_weight_syncs(registry: Registry[type[WeightSync]]) -> None:
    registry.add("nccl", "vime_cuda.sync.nccl:NcclSync", summary="buckets from device to device by NCCL")
    registry.add(
        "cuda_ipc", "vime_cuda.sync.ipc:CudaIpcSync", summary="buckets in device memory that two processes share"
    )


@hookimpl
def vime_choose_weight_sync(topology: Topology) -> str | None:
    if topology.device_type != "cuda" or topology.external_engines:
        return None
    return "cuda_ipc" if topology.colocated else "nccl"


@hookimpl
def vime_register_options(options: Options) -> None:
    from vime_cuda.config import CudaOptions

    options.add(CudaOptions)


@hookimpl
def vime_configure(config: Config) -> None:
    if config.cluster.device not in (DEVICE, "cuda"):
        return
    from vime_core.api import ConfigError
    from vime_cuda.flags import violations

    found = violations(config)
    if found:
        raise ConfigError(found)


@hookimpl
def vime_process_started(role: str) -> None:
    from vime_cuda.process import started

    started(role)
