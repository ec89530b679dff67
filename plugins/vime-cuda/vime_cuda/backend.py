"""The CUDA device: torch's device "cuda" by three values, and what is really its own.

Making the object imports no torch, because the machine that starts a run on a cluster may have no GPU. The first use of
``module`` does. Megatron-core is written for this device, so of the core's shims only that one is applied which a
missing Transformer Engine asks for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core import TorchDevice
from vime_cuda.config import CudaOptions
from vime_cuda.engine import engine_arguments
from vime_cuda.environment import Situation, variables
from vime_cuda.layers import chosen, require_transformer_engine
from vime_cuda.probe import device_nodes
from vime_cuda.visible import RESOURCE, VISIBLE

if TYPE_CHECKING:
    from vime_core import Config
    from vime_core.api import DoctorFinding, VisibleDevices


class CudaBackend(TorchDevice):
    device_type: ClassVar[str] = "cuda"
    collective: ClassVar[str] = "nccl"
    module_name: ClassVar[str] = "torch.cuda"
    visible_devices: ClassVar[VisibleDevices | None] = VISIBLE
    resource: ClassVar[str | None] = RESOURCE
    native: ClassVar[bool] = True
    pins_memory: ClassVar[bool] = True
    supports_sleep: ClassVar[bool] = True
    supports_colocate: ClassVar[bool] = True

    def __init__(self, situation: Situation | None = None) -> None:
        self.situation = situation or Situation()
        self.plain_modules = chosen(self.situation.options.trainer) == "plain"

    def bind(self, config: Config) -> CudaBackend:
        """The device as one run uses it."""
        return type(self)(situation_of(config))

    @cached_property
    def module(self) -> Any:
        """``torch.cuda``. Raises VimeError with what is missing."""
        from vime_cuda.runtime import load

        return load()

    # placement -----------------------------------------------------------------------------------------------
    def count(self) -> int:
        """Devices that this process sees; without torch, so that the driver holds no context on them."""
        visible = VISIBLE.seen(os.environ)
        return len(device_nodes()) if visible is None else len(visible)

    def ray_options(self, devices: float) -> dict[str, Any]:
        """Ray finds NVIDIA devices by itself and knows them as GPU; its worker then sees its own ones only."""
        return {"num_gpus": devices, "num_cpus": 0}

    def environment(self, role: str) -> Mapping[str, str]:
        return variables(role, self.situation)

    # adaptation of the two stacks ----------------------------------------------------------------------------
    def adapt_megatron(self) -> Sequence[str]:
        if not self.plain_modules:
            require_transformer_engine()
        return super().adapt_megatron()

    def engine_arguments(self) -> Mapping[str, Any]:
        return engine_arguments(self.situation)

    def doctor(self) -> Sequence[DoctorFinding]:
        from vime_cuda.doctor import findings

        return findings()


def situation_of(config: Config) -> Situation:
    """What the device's answers depend on in a run."""
    return Situation(
        colocated=config.cluster.colocate,
        engine_devices=config.cluster.rollout_num_gpus_per_engine,
        options=config.plugins.get("cuda") or CudaOptions(),
    )
