"""NCCL as a carrier: the endpoint of vLLM's own NCCL engine between trainer rank 0 and all engine workers.

vLLM's engine class itself loads into the model while bytes arrive, so nothing could be refused any more; its endpoint
(a communicator beside torch.distributed) carries the core's buckets instead, and the core's transaction decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.weights import CommunicatorChannel, Rendezvous, StreamPublisher, StreamReceiver, StreamSync
from vime_cuda.sync.publisher import publisher_of

if TYPE_CHECKING:
    from vime_core import Config


class NcclChannel(CommunicatorChannel):
    library: ClassVar[str] = "NCCL"
    remedy: ClassVar[str] = "look for libnccl.so.2 (nvidia-nccl-cu13), set VLLM_NCCL_SO_PATH, unset VLLM_DISABLE_PYNCCL"

    def __init__(self, terms: Rendezvous, rank: int) -> None:
        from vime_cuda.runtime import load

        super().__init__(terms, rank, load(), "cuda")

    def join(self, host: str, port: int, rank: int, world: int) -> Any:
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

        return stateless_init_process_group(host, port, rank, world, self._index)

    def destroy(self, comm: Any) -> None:
        comm.destroy()


class NcclSync(StreamSync):
    kind: ClassVar[str] = "nccl"
    publisher: ClassVar[str] = "vime_cuda.sync.nccl:make_publisher"
    receiver: ClassVar[str] = "vime_cuda.sync.nccl:NcclReceiver"


class NcclReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(NcclChannel)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, NcclChannel)
