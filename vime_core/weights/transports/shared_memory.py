"""Weights through shared memory: trainer and engines on one machine.

The trainer packs each bucket into anonymous memory and every worker of every engine maps it: the bytes are copied once
on the way. What is said about them goes over a gloo group. On Linux a buffer is a memfd, reached by others as
``/proc/<pid>/fd/<n>``: no name to unlink, nothing left behind by ``kill -9``, and not bound by the size of ``/dev/shm``
(64 MB in a default container). Elsewhere it is a temporary file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from typing import TYPE_CHECKING, ClassVar

from vime_core.api import SyncError
from vime_core.weights.channel import Rendezvous
from vime_core.weights.sync import StreamSync
from vime_core.weights.transports.gloo import GlooChannel

if TYPE_CHECKING:
    import torch


class SharedMemoryChannel(GlooChannel):
    """Every version is packed into the same buffers, so an engine has to let go of one before the next begins."""

    keeps_sent: ClassVar[bool] = True

    def __init__(self, terms: Rendezvous, rank: int) -> None:
        super().__init__(terms, rank)
        self._buffers: list[SharedBuffer] = []
        self._used = 0

    def begin(self) -> None:
        self._used = 0

    def bucket(self, size: int) -> torch.Tensor:
        number = self._used
        self._used += 1
        if number == len(self._buffers):
            self._buffers.append(SharedBuffer(size))
        elif self._buffers[number].size != size:
            self._buffers[number].close()
            self._buffers[number] = SharedBuffer(size)
        return self._buffers[number].flat

    def give(self, flat: torch.Tensor) -> None:
        mine = self._buffers[: self._used]
        found = next((buffer for buffer in mine if buffer.flat.data_ptr() == flat.data_ptr()), None)
        if found is None:  # changes, which are packed nowhere
            self.bucket(flat.numel()).copy_(flat)
            found = self._buffers[self._used - 1]
        self.tell(found.path)

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
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


class SharedMemorySync(StreamSync):
    kind: ClassVar[str] = "shared_memory"


class SharedBuffer:
    """[size] uint8 with one writer. ``path`` is where other processes open it. Pages that were never written cost
    nothing."""

    def __init__(self, size: int) -> None:
        import torch

        self.size = size
        self._file: str | None = None
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("vime-weights")
            self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        else:
            self._fd, self.path = tempfile.mkstemp(prefix="vime-weights")
            self._file = self.path
        os.ftruncate(self._fd, size)
        self.flat = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)

    def close(self) -> None:
        """Whoever has it mapped keeps it; nobody can open it any more. Idempotent."""
        import torch

        if self._fd < 0:
            return
        self.flat = torch.empty(0, dtype=torch.uint8)
        os.close(self._fd)
        self._fd = -1
        if self._file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file)


def map_bytes(path: str, size: int) -> torch.Tensor:
    """The buffer at ``path`` as [size] uint8, mapped, not copied. Writing to it changes only the caller's view.

    Raises:
        OSError: the writer is gone.
        ValueError: the buffer is smaller than ``size``.
    """
    import torch

    fd = os.open(path, os.O_RDONLY)
    try:
        have = os.fstat(fd).st_size
        if have < size:
            raise ValueError(f"buffer {path} has {have} bytes, its packet says {size}")
        # a private mapping is writable, which torch wants, and can never reach the sender's bytes
        return torch.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    finally:
        os.close(fd)
