"""Device memory that two processes share, as a carrier: trainer and engine on one device.

Every trainer rank sends to the engine worker on its own device. Its one buffer is exported once; a broadcast is a copy
into it, a word over the meeting point, and a copy out of it. The handle is plain values (a key, sizes, offsets) and
travels as JSON: nothing is unpickled.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from vime_core.api import SyncError
from vime_core.weights.channel import Channel, Rendezvous

if TYPE_CHECKING:
    import torch


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


class SharedChannel(Channel):
    """One end, for the length of a run. Larger runs of bytes than the buffer go in pieces."""

    def __init__(self, terms: Rendezvous, rank: int, exporter: Exporter, sends: bool) -> None:
        import torch.distributed as dist

        limit = datetime.timedelta(seconds=terms["timeout"])
        self._store = dist.TCPStore(
            terms["host"], terms["port"], is_master=False, timeout=limit, wait_for_workers=False
        )
        self._exporter, self._sends, self._turn = exporter, sends, 0
        self._prefix = f"{terms['group']}/{exporter.place()}"
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
                "engine have to be on the same devices"
            ) from error


def machine() -> str:
    """A name of this machine and boot that does not depend on which network interface is asked."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def to_text(values: Sequence[Any]) -> str:
    """Plain values as JSON; bytes in base 64."""
    return json.dumps([{"b": base64.b64encode(v).decode()} if isinstance(v, bytes) else v for v in values])


def from_text(text: str) -> list[Any]:
    return [base64.b64decode(v["b"]) if isinstance(v, dict) else v for v in json.loads(text)]
