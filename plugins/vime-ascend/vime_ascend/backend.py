"""The Ascend device: torch's device "npu" by three values, and what is really its own.

Making the object imports neither torch nor torch_npu, because the machine that starts a run on a cluster may have no
NPU. The first use of ``module`` does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from vime_ascend.config import AscendOptions
from vime_ascend.engine import engine_arguments, knows_rl_config, merged
from vime_ascend.environment import Situation, variables
from vime_ascend.probe import device_nodes
from vime_ascend.visible import RESOURCE, VISIBLE
from vime_core import TorchDevice

if TYPE_CHECKING:
    from vime_core import Config
    from vime_core.api import DoctorFinding, VisibleDevices


class AscendBackend(TorchDevice):
    device_type: ClassVar[str] = "npu"
    collective: ClassVar[str] = "hccl"
    module_name: ClassVar[str] = "torch.npu"
    extension: ClassVar[str | None] = "torch_npu"
    visible_devices: ClassVar[VisibleDevices | None] = VISIBLE
    resource: ClassVar[str | None] = RESOURCE
    plain_modules: bool = True
    pins_memory: ClassVar[bool] = True
    supports_sleep: ClassVar[bool] = True
    supports_colocate: ClassVar[bool] = True

    def __init__(self, situation: Situation | None = None, vllm: Mapping[str, Any] | None = None) -> None:
        self.situation, self._vllm = situation or Situation(), dict(vllm or {})

    def bind(self, config: Config) -> AscendBackend:
        """The device as one run uses it."""
        return type(self)(situation_of(config), config.vllm)

    @cached_property
    def module(self) -> Any:
        """``torch.npu``. Raises VimeError with what is missing."""
        from vime_ascend.runtime import load

        return load()

    # placement -----------------------------------------------------------------------------------------------
    def count(self) -> int:
        """Devices that this process sees; without torch, so that the driver holds no context on them."""
        visible = VISIBLE.seen(os.environ)
        return len(device_nodes()) if visible is None else len(visible)

    def ray_options(self, devices: float) -> dict[str, Any]:
        return {"resources": {RESOURCE: devices}, "num_cpus": 0}

    def environment(self, role: str) -> Mapping[str, str]:
        return variables(role, self.situation)

    # adaptation of the two stacks ----------------------------------------------------------------------------
    def adapt_megatron(self) -> Sequence[str]:
        if self.situation.options.trainer == "mindspeed":
            from vime_ascend.mindspeed import MindSpeed

            return MindSpeed().repatch(self.situation.options.mindspeed)
        return super().adapt_megatron()

    def megatron_overrides(self) -> Mapping[str, Any]:
        if self.situation.options.trainer == "mindspeed":
            return {"gradient_accumulation_fusion": False, "masked_softmax_fusion": False}
        return super().megatron_overrides()

    def engine_arguments(self) -> Mapping[str, Any]:
        own = engine_arguments(self.situation.options, knows_rl_config())
        return merged(own, self._vllm)

    def doctor(self) -> Sequence[DoctorFinding]:
        from vime_ascend.doctor import findings

        return findings()


def situation_of(config: Config) -> Situation:
    """What the environment of a run depends on."""
    return Situation(
        colocated=config.cluster.colocate,
        start_deadline=config.cluster.start_timeout_secs,
        collective_deadline=config.cluster.distributed_timeout_minutes * 60,
        sync_deadline=config.sync.vllm_weight_transfer_timeout_sec,
        options=config.plugins.get("ascend") or AscendOptions(),
    )
