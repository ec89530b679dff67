"""Memory of a GPU that two processes share: torch's handles, opened as vLLM's own IPC engine opens them.

A handle is what torch reduces a tensor to: constants that both ends know, and plain values, which alone travel (as
JSON; vLLM's engine would pickle them over HTTP). The buffer is exported once a run and opened once, which is what
torch's count of references between processes allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.weights import (
    Rendezvous,
    SharedChannel,
    StreamPublisher,
    StreamReceiver,
    StreamSync,
    from_text,
    machine,
    to_text,
)
from vime_cuda.sync.publisher import publisher_of

if TYPE_CHECKING:
    import torch

    from vime_core import Config

#: places among the arguments of torch's ``rebuild_cuda_tensor`` of those that differ from buffer to buffer
_OFFSET, _DEVICE, _HANDLE = 3, 6, 7


class CudaExporter:
    """torch's handles. Receivers open them on their own index of the same device."""

    def __init__(self) -> None:
        from vime_cuda.runtime import load

        self._cuda: Any = load()
        self._index: int = self._cuda.current_device()
        self._importer: Any = None

    def place(self) -> str:
        """Machine and UUID: an index means nothing to a process that sees other devices."""
        return f"{machine()}-{self._cuda.get_device_properties(self._index).uuid}"

    def empty(self, size: int) -> torch.Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8, device=f"cuda:{self._index}")

    def export(self, flat: torch.Tensor) -> str:
        from torch.multiprocessing.reductions import reduce_tensor

        _, arguments = reduce_tensor(flat)
        return to_text(plain(arguments, flat.numel()))

    def open(self, handle: str) -> torch.Tensor:
        from vllm.distributed.weight_transfer.packed_tensor import PackedBufferImporter

        self._importer = PackedBufferImporter()  # holds the memory open
        flat: torch.Tensor = self._importer.rebuild(rebuilt(from_text(handle), self._index))
        return flat

    def synchronize(self) -> None:
        self._cuda.synchronize()


def plain(arguments: tuple[Any, ...], size: int) -> list[Any]:
    """Of the arguments of ``rebuild_cuda_tensor`` for a flat run of bytes, those that the other end cannot know."""
    return [size, arguments[_OFFSET], *arguments[_HANDLE:]]


def rebuilt(values: list[Any], index: int) -> list[Any]:
    """The arguments again, for this process's device ``index``."""
    import torch

    size, offset, *rest = values
    kind: Any = torch.storage.TypedStorage
    return [torch.Tensor, torch.Size([size]), (1,), offset, kind, torch.uint8, index, *rest]


class CudaIpcSync(StreamSync):
    kind: ClassVar[str] = "cuda_ipc"
    publisher: ClassVar[str] = "vime_cuda.sync.ipc:make_publisher"
    receiver: ClassVar[str] = "vime_cuda.sync.ipc:IpcReceiver"
    every_rank_sends: ClassVar[bool] = True


def sending(terms: Rendezvous, rank: int) -> SharedChannel:
    return SharedChannel(terms, rank, CudaExporter(), sends=True)


def receiving(terms: Rendezvous, rank: int) -> SharedChannel:
    return SharedChannel(terms, rank, CudaExporter(), sends=False)


class IpcReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(receiving)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, sending)
