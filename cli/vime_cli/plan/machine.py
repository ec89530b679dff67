"""What a run's memory is compared with: one device's memory, or a machine's that all of its processes share."""

from __future__ import annotations

from dataclasses import dataclass

from vime_cli.units import MIB


@dataclass(frozen=True)
class Costs:
    """What processes and allocators add to tensors. Measured constants (``benchmarks/plan.py``, docs/plan.md).

    Attributes:
        trainer, engine: bytes of a trainer rank and of an engine's worker before they hold anything.
        direct, server: bytes around an engine: in its Ray actor, or as a server beside its Ray actor.
        copies: resident bytes for each byte of an engine's weights (on the CPU about two, measured once).
        beside: bytes of the driver, the rollout worker and Ray's own processes.
        peak: bytes of the heap for each byte that a phase takes of it (:mod:`vime_cli.plan.tensor_bytes`).
        kept: bytes of the heap after training for each byte that training took of it.
    """

    trainer: int = 0
    engine: int = 0
    direct: int = 0
    server: int = 0
    copies: float = 1.0
    beside: int = 0
    peak: float = 1.0
    kept: float = 1.0


#: Resident sets with torch 2.13, Megatron-core 0.16, vLLM 0.32 and Ray 2.60 imported; the heap is glibc's (2.36), whose
#: free room between tensors cannot be derived.
HOST_COSTS = Costs(
    trainer=480 * MIB,
    engine=640 * MIB,
    direct=170 * MIB,
    server=700 * MIB,
    copies=2.0,
    beside=1370 * MIB,
    peak=1.6,
    kept=1.4,
)
#: a device's own memory: torch's caching allocator keeps what a step took; contexts and libraries are not known here
DEVICE_COSTS = Costs()


@dataclass(frozen=True)
class Machine:
    """Nodes of a run.

    Attributes:
        device: name of the device backend.
        memory: bytes of a device (of a node where ``shared``); None: not known here.
        source: where that number is from, or why there is none.
        shared: devices are process slots, and all processes of a node share its memory.
        per_node: devices of a node.
        sleeps: an engine gives memory back while it sleeps.
    """

    device: str
    memory: int | None
    source: str
    shared: bool
    per_node: int
    sleeps: bool = False

    @property
    def costs(self) -> Costs:
        return HOST_COSTS if self.shared else DEVICE_COSTS
