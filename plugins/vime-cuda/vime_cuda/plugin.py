"""What vime-cuda adds to vime."""

from __future__ import annotations

from vime_core import DeviceBackend, hookimpl
from vime_core.registry import Registry


@hookimpl
def vime_register_device_backends(registry: Registry[type[DeviceBackend]]) -> None:
    registry.add(
        "cuda",
        "vime_cuda.backend:CudaBackend",
        summary="NVIDIA devices: NCCL, CUDA IPC",
        priority=40,
        available="vime_cuda.probe:present",
    )
