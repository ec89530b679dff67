"""The environment of each process of a run on NPUs, as one pure function.

Everything is said explicitly: an image may export ``expandable_segments:True``, and a variable that is merely not set
here would let that through. Nothing is inherited from one role by another.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from vime_ascend.config import AscendOptions
from vime_ascend.ports import slices
from vime_ascend.probe import AUTOLOAD

#: how a process that has only its environment learns what it is part of; JSON of :func:`handed_down`
MARK = "VIME_ASCEND"
#: HCCL's own bounds of a timeout, seconds
_SHORTEST, _LONGEST = 120, 7200


@dataclass(frozen=True)
class Situation:
    """What of a run's configuration the environment depends on. Deadlines in seconds."""

    colocated: bool = False
    start_deadline: float = 300.0
    collective_deadline: float = 600.0
    sync_deadline: float = 900.0
    options: AscendOptions = field(default_factory=AscendOptions)


def variables(role: str, situation: Situation) -> dict[str, str]:
    """Variables for a process of ``role`` ("driver", "rollout", "trainer", "engine").

    Raises:
        ConfigError: the port range cannot be divided.
    """
    if role == "trainer":
        return {**_device(role, situation), **_trainer(situation)}
    if role == "engine":
        return {**_device(role, situation), **_engine(situation)}
    # no device: importing torch must neither need CANN nor hold a context on an NPU
    return {AUTOLOAD: "0"}


def _device(role: str, situation: Situation) -> dict[str, str]:
    options = situation.options
    ports = slices(options.hccl_ports)[role]
    found = {
        AUTOLOAD: "1",
        MARK: json.dumps(handed_down(role, situation), sort_keys=True),
        # Ray would narrow the list, unsorted; ids have to mean the same in trainer and engine
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",
        "HCCL_HOST_SOCKET_PORT_RANGE": "-".join(map(str, ports.host)),
        "HCCL_NPU_SOCKET_PORT_RANGE": "-".join(map(str, ports.npu)),
        # never shorter than vime's own deadlines, which can say who is missing
        "HCCL_CONNECT_TIMEOUT": _timeout(situation.start_deadline, situation.collective_deadline),
        "HCCL_EXEC_TIMEOUT": _timeout(situation.collective_deadline, situation.sync_deadline),
    }
    if options.hccl_buffer_mb is not None:
        found["HCCL_BUFFSIZE"] = str(options.hccl_buffer_mb)
    if options.hccl_interface is not None:
        found["HCCL_SOCKET_IFNAME"] = options.hccl_interface
    if options.deterministic:
        found["HCCL_DETERMINISTIC"] = "true"
    return found


def _trainer(situation: Situation) -> dict[str, str]:
    return {
        # Megatron asserts it beside tensor and sequence parallelism, on every device
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PYTORCH_NPU_ALLOC_CONF": allocator(situation.colocated),
    }


def _engine(situation: Situation) -> dict[str, str]:
    # NZ is a layout of its own, and weights cannot be loaded into it in place
    found = {"VLLM_ASCEND_ENABLE_NZ": "0"}
    if situation.colocated:
        found["PYTORCH_NPU_ALLOC_CONF"] = allocator(True)
    return found


def allocator(colocated: bool) -> str:
    """Expandable segments stop fragmentation, but neither IPC nor the engine's sleeping memory pool works on them."""
    return f"expandable_segments:{not colocated}"


def handed_down(role: str, situation: Situation) -> dict[str, Any]:
    """What the plugin's process hook needs before anything is imported."""
    options = situation.options
    return {"role": role, "trainer": options.trainer, "mindspeed": dict(options.mindspeed)}


def _timeout(*deadlines: float) -> str:
    return str(min(max(math.ceil(max(deadlines)), _SHORTEST), _LONGEST))
