"""Device memory that two processes share, as a carrier: trainer and engine on one NPU.

Every trainer rank sends to the engine worker on its own chip. Its one buffer is exported once; a broadcast is a copy
into it, a word over the meeting point, and a copy out of it. The handle is plain values (a key, sizes, offsets) and
travels as JSON: nothing is unpickled.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from vime_ascend.sync.channel import Terms
from vime_ascend.sync.gloo import publisher_of
from vime_ascend.sync.receiver import StreamReceiver
from vime_ascend.sync.sender import StreamPublisher
from vime_ascend.sync.transaction import StreamSync
from vime_ascend.visible import seen
from vime_core.errors import SyncError

if TYPE_CHECKING:
    import torch

    from vime_core import Config


class Exporter(Protocol):
    """Memory of one process in another, on one machine."""

    def place(self) -> str:
        """The same text in every process on the same device, and in no other."""

    def empty(self, size: int) -> torch.Tensor:
        """[size] uint8 that can be exported."""

    def export(self, flat: torch.Tensor) -> str:
        """What another process needs to open it. The memory must outlive all uses there."""

    def open(self, handle: str) -> torch.Tensor:
        """The same memory, in this process."""

    def synchronize(self) -> None: ...


class IpcChannel:
    """One end, for the length of a run. Larger runs of bytes than the buffer go in pieces."""

    def __init__(self, terms: Terms, rank: int, exporter: Exporter, sends: bool) -> None:
        import torch.distributed as dist

        limit = datetime.timedelta(seconds=terms["timeout"])
        self._store = dist.TCPStore(
            terms["host"], terms["port"], is_master=False, timeout=limit, wait_for_workers=False
        )
        self._exporter, self._sends, self._turn = exporter, sends, 0
        self._prefix = f"{terms['group']}/{exporter.place()}"
        self.alive = True
        if sends:
            self._buffer = exporter.empty(terms["bucket"])
            self._store.set(f"{self._prefix}/handle", exporter.export(self._buffer))
        else:
            self._buffer = exporter.open(self._ask(f"{self._prefix}/handle"))

    def empty(self, size: int) -> torch.Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8, device=self._buffer.device)

    def broadcast(self, flat: torch.Tensor) -> None:
        step = self._buffer.numel()
        for start in range(0, flat.numel(), step):
            self._pass(flat[start : start + step])

    def close(self) -> None:
        self.alive = False

    def _pass(self, piece: torch.Tensor) -> None:
        if not self.alive:
            raise SyncError("the IPC channel is closed")
        self._turn += 1
        ready, done = f"{self._prefix}/{self._turn}/ready", f"{self._prefix}/{self._turn}/done"
        shared = self._buffer[: piece.numel()]
        if self._sends:
            shared.copy_(piece)
            self._exporter.synchronize()
            self._store.set(ready, str(piece.numel()))
            self._ask(done)
            for key in (ready, done):
                self._store.delete_key(key)
            return
        if int(self._ask(ready)) != piece.numel():
            self.alive = False
            raise SyncError("sender and receiver are out of step: a piece has another size than was asked for")
        piece.copy_(shared)
        self._exporter.synchronize()  # the sender may write over it once this says done
        self._store.set(done, "1")

    def _ask(self, key: str) -> str:
        import torch.distributed as dist

        try:
            return str(self._store.get(key).decode())
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            self.alive = False
            other = "an engine worker" if self._sends else "a trainer rank"
            raise SyncError(
                f"IPC: {other} on the same device ({self._exporter.place()}) did not answer in time; trainer and "
                "engine have to see the same NPUs"
            ) from error


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
    visible = seen(environ)
    return f"{host}-{index if visible is None else visible[index]}"


def machine() -> str:
    """A name of this machine and boot that does not depend on which network interface is asked."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def to_text(values: Sequence[Any]) -> str:
    """Plain values as JSON; bytes in base 64."""
    return json.dumps([{"b": base64.b64encode(v).decode()} if isinstance(v, bytes) else v for v in values])


def from_text(text: str) -> list[Any]:
    return [base64.b64decode(v["b"]) if isinstance(v, dict) else v for v in json.loads(text)]


class NpuIpcSync(StreamSync):
    kind: ClassVar[str] = "npu_ipc"
    publisher: ClassVar[str] = "vime_ascend.sync.ipc:make_publisher"
    receiver: ClassVar[str] = "vime_ascend.sync.ipc:IpcReceiver"
    every_rank_sends: ClassVar[bool] = True
    supports_multi_node: ClassVar[bool] = False


def sending(terms: Terms, rank: int) -> IpcChannel:
    return IpcChannel(terms, rank, NpuExporter(), sends=True)


def receiving(terms: Terms, rank: int) -> IpcChannel:
    return IpcChannel(terms, rank, NpuExporter(), sends=False)


class IpcReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(receiving, pin=True)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, "npu_ipc", sending)
