"""What a device must answer. Every core path asks these questions; none asks for the device's name."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    import torch

    from vime_core.api.visible_devices import VisibleDevices
    from vime_core.config import Config


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes. ``used`` and ``peak`` are this process's, ``total`` is the device's."""

    used: int
    peak: int
    total: int


@dataclass(frozen=True)
class DoctorFinding:
    """One line of ``vime doctor``: what was looked at, whether it is well, and how to mend it.

    Attributes:
        ok: nothing is broken; a run can do with what is here.
        warns: it can, but not as tested; meant for what is ``ok``.
        items: what ``detail`` counts, a line each, for ``--json``.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""
    warns: bool = False
    items: tuple[str, ...] = ()

    @property
    def status(self) -> Literal["ok", "warning", "broken"]:
        if not self.ok:
            return "broken"
        return "warning" if self.warns else "ok"


class DeviceBackend(abc.ABC):
    """A device type as values and thin adapters. An accelerator differs from the CPU by values, not by code."""

    #: torch device type, "cpu" for one
    device_type: ClassVar[str]
    #: torch.distributed backend name, "gloo" for one
    collective: ClassVar[str]
    #: the variable that narrows the visible devices, or None where there is none
    visible_devices: ClassVar[VisibleDevices | None] = None
    #: sleep/wake of the engine really frees memory
    supports_sleep: ClassVar[bool] = False
    #: trainer and engines may share a device
    supports_colocate: ClassVar[bool] = False
    #: host memory can be page-locked, which makes copies to and from the device faster
    pins_memory: ClassVar[bool] = False

    def bind(self, config: Config) -> DeviceBackend:
        """The device as one run uses it, where what it answers depends on the run; called once in each process."""
        return self

    # placement -----------------------------------------------------------------------------------------------
    @abc.abstractmethod
    def count(self) -> int:
        """Devices (or process slots) on this machine."""

    @abc.abstractmethod
    def ray_options(self, devices: float) -> dict[str, Any]:
        """Ray actor options that reserve ``devices`` devices, e.g. ``{"num_cpus": 1}`` or ``{"resources": {...}}``."""

    @abc.abstractmethod
    def local_index(self, rank_on_node: int) -> int:
        """Index for ``set_device`` of the rank-th worker of a node, as the process sees its visible devices."""

    def environment(self, role: str) -> Mapping[str, str]:
        """Variables that a process of ``role`` ("driver", "trainer", "engine", "rollout") needs before its imports."""
        return {}

    # the torch device ----------------------------------------------------------------------------------------
    @abc.abstractmethod
    def torch_device(self, index: int = 0) -> torch.device: ...

    @abc.abstractmethod
    def set_device(self, index: int) -> None: ...

    @abc.abstractmethod
    def synchronize(self) -> None: ...

    @abc.abstractmethod
    def manual_seed(self, seed: int) -> None: ...

    @abc.abstractmethod
    def get_rng_state(self) -> torch.Tensor: ...

    @abc.abstractmethod
    def set_rng_state(self, state: torch.Tensor) -> None: ...

    @abc.abstractmethod
    def memory(self) -> MemoryFigures: ...

    @abc.abstractmethod
    def empty_cache(self) -> None: ...

    # adaptation of the two stacks ----------------------------------------------------------------------------
    @abc.abstractmethod
    def adapt_megatron(self) -> Sequence[str]:
        """Apply this device's named, version-guarded shims to megatron's modules; idempotent. Returns their names."""

    @abc.abstractmethod
    def megatron_overrides(self) -> Mapping[str, Any]:
        """TransformerConfig values that this device needs (fusions off, and the like)."""

    @abc.abstractmethod
    def engine_arguments(self) -> Mapping[str, Any]:
        """vLLM engine arguments that this device needs; the user's own ``--vllm-*`` win over them."""

    def routing_arguments(self) -> Mapping[str, Any]:
        """vLLM engine arguments with which an engine returns the experts that it chose for each token."""
        return {"enable_return_routed_experts": True}

    def doctor(self) -> Sequence[DoctorFinding]:
        return ()
