"""HCCL as a carrier: vllm-ascend's communicator between trainer rank 0 and all engine workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vime_ascend.sync.gloo import publisher_of
from vime_core.weights import CommunicatorChannel, Rendezvous, StreamPublisher, StreamReceiver, StreamSync

if TYPE_CHECKING:
    from vime_core import Config


class HcclChannel(CommunicatorChannel):
    library: ClassVar[str] = "HCCL"
    remedy: ClassVar[str] = "source set_env.sh of CANN in the shell that starts vime, or set HCCL_SO_PATH"

    def __init__(self, terms: Rendezvous, rank: int) -> None:
        from vime_ascend.runtime import load

        super().__init__(terms, rank, load(), "npu")

    def join(self, host: str, port: int, rank: int, world: int) -> Any:
        from vllm.distributed.utils import StatelessProcessGroup
        from vllm_ascend.distributed.device_communicators.pyhccl import PyHcclCommunicator

        group = StatelessProcessGroup.create(host, port, rank, world)
        return PyHcclCommunicator(group, device=self._index)

    def destroy(self, comm: Any) -> None:
        comm.hccl.hcclCommDestroy(comm.comm)


class HcclSync(StreamSync):
    kind: ClassVar[str] = "hccl"
    publisher: ClassVar[str] = "vime_ascend.sync.hccl:make_publisher"
    receiver: ClassVar[str] = "vime_ascend.sync.hccl:HcclReceiver"


class HcclReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(HcclChannel)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, HcclChannel)
