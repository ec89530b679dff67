"""Options of the Ascend plugin: ``--ascend-<field>`` on the command line, ``[plugins.ascend]`` in a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class AscendOptions:
    trainer: Literal["plain", "mindspeed"] = field(
        default="plain",
        metadata={
            "help": "plain: megatron-core with plain torch modules; mindspeed: MindSpeed's fused kernels and patches"
        },
    )
    mindspeed: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "MindSpeed's own arguments under its names (JSON)"}
    )
    chip: Literal["auto", "a2", "a3", "a5"] = field(
        default="auto", metadata={"help": "generation of the NPUs, for checks on a machine that has none"}
    )
    hccl_ports: str = field(
        default="60000-60999",
        metadata={"help": "ports that HCCL may use on each machine; split between trainer and engines"},
    )
    hccl_buffer_mb: int | None = field(
        default=None, metadata={"help": "device memory of a communicator's buffer (HCCL_BUFFSIZE); default: HCCL's 200"}
    )
    hccl_interface: str | None = field(
        default=None, metadata={"help": "network interface of HCCL between machines (HCCL_SOCKET_IFNAME)"}
    )
    deterministic: bool = field(default=False, metadata={"help": "collectives give the same bits every time; slower"})
    graphs: bool = field(
        default=False,
        metadata={"help": "engines capture ACL graphs; a graph may go on with old weights, so try the model first"},
    )
    delta: bool = field(
        default=False, metadata={"help": "weight sync: send only the values that changed, where that is fewer bytes"}
    )
