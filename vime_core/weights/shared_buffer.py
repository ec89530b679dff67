"""Bytes that other processes of the machine can map: anonymous memory that is gone with its last user.

On Linux a buffer is a memfd, reached by others as ``/proc/<pid>/fd/<n>``: no name to unlink, nothing left behind by
``kill -9``, and not bound by the size of ``/dev/shm`` (64 MB in a default container). Elsewhere it is a temporary file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile

import torch


class SharedBuffer:
    """[size] uint8 with one writer. ``path`` is where other processes open it. Pages that were never written cost
    nothing."""

    def __init__(self, size: int) -> None:
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
    fd = os.open(path, os.O_RDONLY)
    try:
        have = os.fstat(fd).st_size
        if have < size:
            raise ValueError(f"buffer {path} has {have} bytes, its packet says {size}")
        # a private mapping is writable, which torch wants, and can never reach the sender's bytes
        return torch.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    finally:
        os.close(fd)
