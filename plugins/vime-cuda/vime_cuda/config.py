"""Options of the CUDA plugin: ``--cuda-<field>`` on the command line, ``[plugins.cuda]`` in a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class CudaOptions:
    trainer: Literal["auto", "te", "plain"] = field(
        default="auto",
        metadata={
            "help": "te: Megatron's layers of Transformer Engine; plain: plain torch modules; auto: te where it is "
            "installed"
        },
    )
    deterministic: bool = field(
        default=False, metadata={"help": "kernels and collectives give the same bits every time; slower"}
    )
    nccl_interface: str | None = field(
        default=None, metadata={"help": "network interface of NCCL between machines (NCCL_SOCKET_IFNAME)"}
    )
    delta: bool = field(
        default=False, metadata={"help": "weight sync: send only the values that changed, where that is fewer bytes"}
    )
