"""What vime-ascend adds to vime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core import DeviceBackend, hookimpl

if TYPE_CHECKING:
    from vime_core import Config
    from vime_core.options import Options
    from vime_core.registry import Registry

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
def vime_register_options(options: Options) -> None:
    from vime_ascend.config import AscendOptions

    options.add(AscendOptions)


@hookimpl
def vime_configure(config: Config) -> None:
    if config.cluster.device not in (DEVICE, "ascend"):
        return
    from vime_ascend.flags import violations
    from vime_core.errors import ConfigError

    found = violations(config)
    if found:
        raise ConfigError(found)


@hookimpl
def vime_process_started(role: str) -> None:
    from vime_ascend.process import started

    started(role)
