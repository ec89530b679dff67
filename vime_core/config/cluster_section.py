"""The options of placement: which devices trainer and engines have, and how they take turns where they share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vime_core.config.option import opt


@dataclass(frozen=True)
class ClusterSection:
    """Placement. A "GPU" is a device of the chosen backend; on the CPU device it is a process slot."""

    device: str | None = opt(None, "device backend; by default the available one of the highest priority")
    actor_num_nodes: int = opt(1, "nodes of the trainer")
    actor_num_gpus_per_node: int = opt(1, "trainer ranks a node")
    rollout_num_gpus: int | None = opt(
        None, "devices of all engines together; default: one engine's, or with --colocate the trainer's"
    )
    rollout_num_gpus_per_engine: int = opt(1, "devices an engine: its tensor parallel size")
    colocate: bool = opt(False, "trainer and engines share the devices and take turns on them")
    offload_train: bool | None = opt(
        None,
        "colocated: the trainer's memory goes to the host while engines generate; default: where engines can sleep",
    )
    offload_rollout: bool | None = opt(
        None, "colocated: engines sleep while the trainer works; default: where the device lets them"
    )
    rollout_sleep_level: Literal[1, 2] = opt(
        1,
        "colocated: 1 keeps a sleeping engine's weights in host memory; 2 drops them, for the next sync brings others",
    )
    trainer_cpu_threads: int = opt(1, "CPU threads of a trainer rank; more than one pays only for larger models")
    engine_cpu_threads: int = opt(
        1, "CPU threads of an engine; trainer and engines take turns, so both may have all cores"
    )
    ray_address: str | None = opt(None, "address of a running Ray cluster; by default Ray is started and ended by vime")
    distributed_timeout_minutes: float = opt(10.0, "deadline of a collective and of process-group setup")
    start_timeout_secs: float = opt(300.0, "deadline for trainer ranks, engines and router to come up")
