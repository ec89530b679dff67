"""The built-in device: the machine's cores, gloo, and plain torch modules under Megatron.

A "device" here is a process slot. Torch and its OpenMP pool get one thread a process: several processes on the same
cores with a pool each slow one another down by an order of magnitude.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.api import MemoryFigures
from vime_core.devices.torch_device import TorchDevice

if TYPE_CHECKING:
    import torch

#: default room for keys and values; a set size lets vLLM skip its profiling run (with eager mode)
_KV_CACHE_BYTES = 1 << 30
#: kernels that oneDNN, and torch's own layer above it, keep for 16-bit products: one for each number of tokens. Both
#: keep 1,024 by default, of 256 KiB each: half a gigabyte a trainer rank, since no two micro-batches (and no two
#: experts) have equally many tokens. A layer's kernels come back in the next layer; for that 64 are enough.
_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}


class CpuBackend(TorchDevice):
    device_type: ClassVar[str] = "cpu"
    collective: ClassVar[str] = "gloo"
    module_name: ClassVar[str] = "torch.cpu"
    supports_colocate: ClassVar[bool] = True

    def count(self) -> int:
        return os.cpu_count() or 1

    def ray_options(self, devices: float) -> dict[str, Any]:
        return {"num_cpus": devices}

    def local_index(self, rank_on_node: int) -> int:
        return 0

    def environment(self, role: str) -> Mapping[str, str]:
        variables = {"OMP_NUM_THREADS": "1"}
        if role == "trainer":
            variables |= _KERNELS
        if role == "engine":
            # Without the first, vLLM moves its worker to a process of its own (6 s more to start); with a binding, all
            # engines of a machine would be bound to the same core.
            variables |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return variables

    # the torch device ----------------------------------------------------------------------------------------
    def torch_device(self, index: int = 0) -> torch.device:
        import torch

        return torch.device("cpu")

    def memory(self) -> MemoryFigures:
        """Resident set size of this process, its peak, and the machine's memory."""
        import resource

        import psutil

        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return MemoryFigures(psutil.Process().memory_info().rss, kibibytes * 1024, psutil.virtual_memory().total)

    def empty_cache(self) -> None:
        """Free room inside the heap goes back to the machine (where the C library can do that)."""
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    # adaptation of the two stacks ----------------------------------------------------------------------------
    def adapt_megatron(self) -> Sequence[str]:
        from vime_core.training import install

        return [*super().adapt_megatron(), *install()]

    def megatron_overrides(self) -> Mapping[str, Any]:
        from vime_core.training import TRANSFORMER_OVERRIDES

        return TRANSFORMER_OVERRIDES

    def engine_arguments(self) -> Mapping[str, Any]:
        return {"enforce_eager": True, "kv_cache_memory_bytes": _KV_CACHE_BYTES}

    def routing_arguments(self) -> Mapping[str, Any]:
        """vLLM's own option needs Triton.

        Raises:
            EngineError: this vLLM is not one whose gap is mended.
        """
        from vime_core.inference import ROUTED_EXPERTS, ROUTING_SCHEDULER, require

        require(ROUTED_EXPERTS)
        return {"scheduler_cls": ROUTING_SCHEDULER}
