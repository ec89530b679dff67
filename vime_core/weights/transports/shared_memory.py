"""Weights through shared memory: trainer and engines on one machine.

The trainer packs each bucket into anonymous memory and every worker of every engine maps it: the bytes are copied once
on the way. What is said about them goes over a gloo group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vime_core.api import SyncError
from vime_core.weights.channel import Rendezvous
from vime_core.weights.shared_buffer import SharedBuffer, map_bytes
from vime_core.weights.sync import StreamSync
from vime_core.weights.transports.gloo import GlooChannel

if TYPE_CHECKING:
    import torch


class SharedMemoryChannel(GlooChannel):
    """Two sets of buffers take turns, so that what the engines go back to after a failed update is still there."""

    reuses: ClassVar[bool] = False

    def __init__(self, terms: Rendezvous, rank: int) -> None:
        super().__init__(terms, rank)
        self._sets: tuple[list[SharedBuffer], list[SharedBuffer]] = ([], [])
        self._turn = self._used = 0

    def begin(self, keep: bool) -> None:
        self._used = 0
        if keep:
            self._turn = 1 - self._turn

    def bucket(self, size: int) -> torch.Tensor:
        mine, number = self._sets[self._turn], self._used
        self._used += 1
        if number == len(mine):
            mine.append(SharedBuffer(size))
        elif mine[number].size != size:
            mine[number].close()
            mine[number] = SharedBuffer(size)
        return mine[number].flat

    def give(self, flat: torch.Tensor) -> None:
        buffer = self._holding(flat)
        if buffer is None:  # changes, which are packed nowhere
            self.bucket(flat.numel()).copy_(flat)
            buffer = self._sets[self._turn][self._used - 1]
        self.tell(buffer.path)

    def take(self, size: int) -> torch.Tensor:
        path = self.told()
        try:
            return map_bytes(path, size)
        except (OSError, ValueError) as error:
            self.close()  # the others learn at once that this one is gone
            raise SyncError(
                f"shared memory: {path} cannot be mapped ({error}); trainer and engine have to be on one machine and "
                "see each other's processes, otherwise take --weight-sync gloo"
            ) from error

    def close(self) -> None:
        super().close()
        for buffers in self._sets:
            for buffer in buffers:
                buffer.close()
            buffers.clear()

    def _holding(self, flat: torch.Tensor) -> SharedBuffer | None:
        mine = self._sets[self._turn][: self._used]
        return next((buffer for buffer in mine if buffer.flat.data_ptr() == flat.data_ptr()), None)


class SharedMemorySync(StreamSync):
    kind: ClassVar[str] = "shared_memory"
