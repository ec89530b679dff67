"""What vime-ascend adds to vime."""

from __future__ import annotations

from vime_core import DeviceBackend, hookimpl
from vime_core.registry import Registry


@hookimpl
def vime_register_device_backends(registry: Registry[type[DeviceBackend]]) -> None:
    registry.add(
        "ascend",
        "vime_ascend.backend:AscendBackend",
        summary="Ascend NPUs: torch_npu, HCCL",
        priority=50,
        available="vime_ascend.probe:present",
    )
