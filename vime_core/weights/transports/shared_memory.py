"""Weights through shared memory: trainer and engines on one machine.

The trainer packs buckets into one anonymous file and every worker of every engine maps them: the bytes are copied once
on the way. What is said about them goes over a gloo group. On Linux the file is a memfd, reached by others as
``/proc/<pid>/fd/<n>``: no name to unlink, nothing left behind by ``kill -9``, and not bound by the size of ``/dev/shm``
(64 MB in a default container). Elsewhere it is a temporary file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vime_core.api import SyncError
from vime_core.weights.channel import Rendezvous
from vime_core.weights.manifest import aligned
from vime_core.weights.sync import StreamSync
from vime_core.weights.transports.gloo import GlooChannel

if TYPE_CHECKING:
    import torch


class SharedMemoryChannel(GlooChannel):
    """Every version is packed into the same file, so an engine has to let go of one before the next begins."""

    keeps_sent: ClassVar[bool] = True
    largest: ClassVar[int] = 64 << 20

    def __init__(self, terms: Rendezvous, rank: int) -> None:
        super().__init__(terms, rank)
        self._file = SharedFile()
        self._used = 0

    def begin(self) -> None:
        self._used = 0

    def bucket(self, size: int) -> torch.Tensor:
        self._used += 1
        return self._file.span(self._used - 1, size).flat

    def give(self, flat: torch.Tensor) -> None:
        found = self._file.holding(flat)
        if found is None:  # changes, which are packed nowhere
            self.bucket(flat.numel()).copy_(flat)
            found = self._file.spans[self._used - 1]
        self.tell(f"{found.offset} {self._file.path}")

    def take(self, size: int) -> torch.Tensor:
        offset, _, path = self.told().partition(" ")
        try:
            return map_bytes(path, int(offset), size)
        except (OSError, ValueError) as error:
            self.close()  # the others learn at once that this one is gone
            raise SyncError(
                f"shared memory: {path} cannot be mapped ({error}); trainer and engine have to be on one machine and "
                "see each other's processes, otherwise take --weight-sync gloo"
            ) from error

    def close(self) -> None:
        super().close()
        self._file.close()


class SharedMemorySync(StreamSync):
    kind: ClassVar[str] = "shared_memory"


@dataclass(frozen=True)
class Span:
    """A bucket's place in the file: ``flat`` [n] uint8 begins ``offset`` bytes after its start."""

    offset: int
    flat: torch.Tensor

    @property
    def end(self) -> int:
        return self.offset + aligned(self.flat.numel(), mmap.ALLOCATIONGRANULARITY)


class SharedFile:
    """Buckets one after another, with one writer, made with the first of them. ``path`` is where other processes open
    it. Pages that were never written cost nothing."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.path, self._fd = "", -1
        self._named: str | None = None

    def span(self, number: int, size: int) -> Span:
        """The ``number``-th bucket's, ``size`` bytes: where it was before, or after the one before it."""
        if self._fd < 0:
            self._open()
        if number == len(self.spans) or self.spans[number].flat.numel() != size:
            del self.spans[number:]
            offset = self.spans[-1].end if self.spans else 0
            os.ftruncate(self._fd, max(os.fstat(self._fd).st_size, offset + size))
            flat = _flat(mmap.mmap(self._fd, size, offset=offset))
            self.spans.append(Span(offset, flat))
        return self.spans[number]

    def holding(self, flat: torch.Tensor) -> Span | None:
        """Whose bytes begin where ``flat``'s do."""
        return next((span for span in self.spans if span.flat.data_ptr() == flat.data_ptr()), None)

    def close(self) -> None:
        """Whoever has it mapped keeps it; nobody can open it any more. Idempotent."""
        if self._fd < 0:
            return
        self.spans.clear()
        os.close(self._fd)
        self._fd = -1
        if self._named is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._named)

    def _open(self) -> None:
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("vime-weights")
            self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        else:
            self._fd, self.path = tempfile.mkstemp(prefix="vime-weights")
            self._named = self.path


def map_bytes(path: str, offset: int, size: int) -> torch.Tensor:
    """``size`` bytes of the file at ``path`` as [size] uint8, mapped, not copied. Writing to it changes only the
    caller's view.

    Raises:
        OSError: the writer is gone.
        ValueError: the file ends before.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        have = os.fstat(fd).st_size
        if have < offset + size:
            raise ValueError(f"{path} has {have} bytes, the packet says {size} from {offset}")
        # a private mapping is writable, which torch wants, and can never reach the sender's bytes
        return _flat(mmap.mmap(fd, size, access=mmap.ACCESS_COPY, offset=offset))
    finally:
        os.close(fd)


def _flat(mapped: mmap.mmap) -> torch.Tensor:
    import torch

    return torch.frombuffer(mapped, dtype=torch.uint8)
