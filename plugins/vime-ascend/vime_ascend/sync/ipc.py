"""Memory of an NPU that two processes share: torch_npu's handles under the core's shared channel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vime_ascend.sync.gloo import publisher_of
from vime_ascend.visible import VISIBLE
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

if TYPE_CHECKING:
    import torch

    from vime_core import Config


class NpuExporter:
    """torch_npu's handles. The whole segment is exported, with an offset; receivers open it on their own index."""

    def __init__(self) -> None:
        from vime_ascend.runtime import load

        self._npu: Any = load()
        self._index: int = self._npu.current_device()

    def place(self) -> str:
        return place_of(self._index, os.environ, machine())

    def empty(self, size: int) -> torch.Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8, device=f"npu:{self._index}")

    def export(self, flat: torch.Tensor) -> str:
        storage: Any = flat.untyped_storage()
        return to_text([*storage._share_npu_(), flat.storage_offset(), flat.numel()])

    def open(self, handle: str) -> torch.Tensor:
        import torch

        _, *shared, offset, size = from_text(handle)
        storage: Any = torch.UntypedStorage._new_shared_npu(self._index, *shared)  # type: ignore[attr-defined]
        return torch.empty(0, dtype=torch.uint8, device=f"npu:{self._index}").set_(storage)[offset : offset + size]

    def synchronize(self) -> None:
        self._npu.synchronize()


def place_of(index: int, environ: Mapping[str, str], host: str) -> str:
    """Host and physical chip: an index means nothing to a process that sees other devices."""
    visible = VISIBLE.seen(environ)
    return f"{host}-{index if visible is None else visible[index]}"


class NpuIpcSync(StreamSync):
    kind: ClassVar[str] = "npu_ipc"
    publisher: ClassVar[str] = "vime_ascend.sync.ipc:make_publisher"
    receiver: ClassVar[str] = "vime_ascend.sync.ipc:IpcReceiver"
    every_rank_sends: ClassVar[bool] = True


def sending(terms: Rendezvous, rank: int) -> SharedChannel:
    return SharedChannel(terms, rank, NpuExporter(), sends=True)


def receiving(terms: Rendezvous, rank: int) -> SharedChannel:
    return SharedChannel(terms, rank, NpuExporter(), sends=False)


class IpcReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(receiving)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, sending)
