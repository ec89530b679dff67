"""A torch device as three values: its type, its torch module and its collective backend.

Everything that ``torch.cpu`` and its sisters spell alike is answered here once; what a module lacks
falls back to torch's own (random numbers of the CPU) or to nothing (caches). A device is a subclass that sets
the class attributes and overrides what is really its own: placement, memory figures, engine arguments.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.api import DeviceBackend, MemoryFigures, assigned_devices

if TYPE_CHECKING:
    import torch


class TorchDevice(DeviceBackend):
    """Set ``device_type``, ``collective`` and ``module_name``; the rest follows."""

    #: where the device's functions live, e.g. "torch.cpu"; imported on first use
    module_name: ClassVar[str]
    #: Ray's name of the resource, where Ray gives workers devices of their own
    resource: ClassVar[str | None] = None
    #: package to import before ``module_name`` exists (an out-of-tree torch extension), or None
    extension: ClassVar[str | None] = None
    #: megatron-core is written for this device: of it only names are mended that a missing optional package would bind
    native: ClassVar[bool] = False
    #: Megatron gets plain torch modules under Transformer Engine's names, where there is no Transformer Engine
    plain_modules: bool = False

    @cached_property
    def module(self) -> Any:
        """The torch module of the device."""
        if self.extension is not None:
            importlib.import_module(self.extension)
        return importlib.import_module(self.module_name)

    # placement -----------------------------------------------------------------------------------------------
    def count(self) -> int:
        return int(self.module.device_count())

    def local_index(self, rank_on_node: int) -> int:
        """The place of the device that Ray gave this worker; where Ray gave none, the rank's place in the list."""
        visible = self.visible_devices
        if visible is None:
            return rank_on_node
        assigned = assigned_devices(self.resource) if self.resource else []
        seen = visible.seen(os.environ)
        return visible.index_of(assigned[0], seen) if assigned else visible.index_of_rank(rank_on_node, seen)

    # the torch device ----------------------------------------------------------------------------------------
    def torch_device(self, index: int = 0) -> torch.device:
        import torch

        return torch.device(self.device_type, index)

    def set_device(self, index: int) -> None:
        self.module.set_device(index)

    def synchronize(self) -> None:
        self.module.synchronize()

    def manual_seed(self, seed: int) -> None:
        self._or_torch("manual_seed")(seed)

    def get_rng_state(self) -> torch.Tensor:
        state: torch.Tensor = self._or_torch("get_rng_state")()
        return state

    def set_rng_state(self, state: torch.Tensor) -> None:
        self._or_torch("set_rng_state")(state)

    def memory(self) -> MemoryFigures:
        _, total = self.module.mem_get_info()
        return MemoryFigures(self.module.memory_allocated(), self.module.max_memory_allocated(), total)

    def empty_cache(self) -> None:
        if hasattr(self.module, "empty_cache"):
            self.module.empty_cache()

    # adaptation of the two stacks ----------------------------------------------------------------------------
    def adapt_megatron(self) -> Sequence[str]:
        from vime_core.training import MegatronShims, apply_optional_imports

        names = apply_optional_imports() if self.native else MegatronShims(self).apply()
        if self.plain_modules:
            from vime_core.training import install

            names += install()
        return names

    def megatron_overrides(self) -> Mapping[str, Any]:
        if not self.plain_modules:
            return {}
        from vime_core.training import TRANSFORMER_OVERRIDES

        return TRANSFORMER_OVERRIDES

    def engine_arguments(self) -> Mapping[str, Any]:
        return {}

    def _or_torch(self, name: str) -> Any:
        import torch

        return getattr(self.module, name, None) or getattr(torch, name)
