"""Bytes that other processes of the machine can map: anonymous memory that is gone with its last user.

On Linux a buffer is a memfd, reached by others as ``/proc/<pid>/fd/<n>``: no name to unlink, nothing left behind by
``kill -9``, and not bound by the size of ``/dev/shm`` (64 MB in a default container). Elsewhere it is a temporary file.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from vime_core.weights.manifest import Manifest

#: bytes written and digested at a time: small enough to still be in the cache for the second of the two
CHUNK = 1 << 20


class SharedBuffer:
    """A growing buffer with one writer. ``path`` is where other processes open it.

    Once its size is known the buffer is mapped, and a copy into the mapping costs half of what a system call does.
    """

    def __init__(self, tag: str) -> None:
        self._file: str | None = None
        self._map: mmap.mmap | None = None
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create(tag)
            self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        else:
            self.fd, self.path = tempfile.mkstemp(prefix=tag)
            self._file = self.path

    def write(self, offset: int, view: memoryview) -> None:
        if self._map is not None and offset + len(view) <= len(self._map):
            memoryview(self._map)[offset : offset + len(view)] = view
            return
        while view:
            written = os.pwrite(self.fd, view, offset)
            view, offset = view[written:], offset + written

    def flip(self, offset: int) -> None:
        """Change one byte (what the fault hook of the tests does)."""
        byte = os.pread(self.fd, 1, offset)
        os.pwrite(self.fd, bytes([byte[0] ^ 0xFF]), offset)

    def resize(self, size: int) -> None:
        """Set the size, which drops what is behind it; later writes within it are copies in memory."""
        if self._map is not None and len(self._map) == size:
            return
        self._unmap()
        os.ftruncate(self.fd, size)
        self._map = mmap.mmap(self.fd, size) if size else None

    def _unmap(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None

    def close(self) -> None:
        if self.fd < 0:
            return
        self._unmap()
        os.close(self.fd)
        self.fd = -1
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
            raise ValueError(f"buffer {path} has {have} bytes, its manifest says {size}")
        # a private mapping is writable, which torch wants, and can never reach the sender's bytes
        return torch.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    finally:
        os.close(fd)


def digest_of(flat: torch.Tensor, manifest: Manifest) -> str:
    """xxh3_128 of the tensors' bytes in manifest order; ``flat`` is [manifest.size] uint8."""
    import xxhash

    view = memoryview(flat.numpy())  # type: ignore[arg-type]
    state = xxhash.xxh3_128()
    for entry in manifest.tensors:
        state.update(view[entry.offset : entry.offset + entry.nbytes])
    return state.hexdigest()


def short_tag(text: str) -> str:
    """A few characters that tell runs apart in names of processes and buffers."""
    return hashlib.blake2s(text.encode(), digest_size=4).hexdigest()
