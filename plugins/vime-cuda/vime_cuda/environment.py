"""The environment of each process of a run on NVIDIA devices, as one pure function.

Everything is said explicitly: an image may export ``expandable_segments:True``, and a variable that is merely not set
here would let that through. Nothing is inherited from one role by another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vime_cuda.config import CudaOptions

#: torch reads the first one that is set; the second is the older name, which vLLM and images still use
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True)
class Situation:
    """What of a run's configuration the device's answers depend on.

    Attributes:
        engine_devices: devices of one engine.
    """

    colocated: bool = False
    engine_devices: int = 1
    options: CudaOptions = field(default_factory=CudaOptions)


def variables(role: str, situation: Situation) -> dict[str, str]:
    """Variables for a process of ``role`` ("driver", "rollout", "trainer", "engine")."""
    if role == "trainer":
        return {**_device(situation), **_trainer(situation)}
    if role == "engine":
        return {**_device(situation), **_engine(situation)}
    return {}


def _device(situation: Situation) -> dict[str, str]:
    options = situation.options
    # indices mean the same to CUDA, to nvidia-smi and to Ray, also on a machine with different cards
    found = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if options.nccl_interface is not None:
        found["NCCL_SOCKET_IFNAME"] = options.nccl_interface
    if options.deterministic:
        found |= {"NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return found


def _trainer(situation: Situation) -> dict[str, str]:
    # the first: Megatron asserts it beside tensor and sequence parallelism
    found = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", **allocator(not situation.colocated)}
    if situation.options.deterministic:
        found["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"
    return found


def _engine(situation: Situation) -> dict[str, str]:
    found = allocator(False) if situation.colocated else {}
    if situation.options.deterministic:
        found["VLLM_BATCH_INVARIANT"] = "1"
    return found


def allocator(expandable: bool) -> dict[str, str]:
    """Expandable segments stop fragmentation, but sharing their memory with another process is slow, and an engine's
    sleeping memory pool has to switch them off around itself."""
    return dict.fromkeys(ALLOCATOR, f"expandable_segments:{expandable}")
