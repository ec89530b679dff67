"""Memory of passing tensors, told apart by how an allocator of the host treats them.

glibc takes tensors up to 32 MiB from its heap, which grows to the most that they ever need together and keeps most of
that; larger ones it maps and returns each by itself. A device's own allocator makes no such difference, so there only
the sum counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: the largest block of glibc's heap (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits)
LARGEST_OF_HEAP = 32 << 20


@dataclass(frozen=True)
class TensorBytes:
    """Bytes at one moment."""

    heap: int = 0
    mapped: int = 0

    @classmethod
    def of(cls, *sizes: int) -> TensorBytes:
        """Of tensors, bytes each."""
        mapped = sum(size for size in sizes if size > LARGEST_OF_HEAP)
        return cls(sum(sizes) - mapped, mapped)

    def __add__(self, other: TensorBytes) -> TensorBytes:
        return TensorBytes(self.heap + other.heap, self.mapped + other.mapped)

    def __mul__(self, count: int) -> TensorBytes:
        return TensorBytes(self.heap * count, self.mapped * count)

    @property
    def total(self) -> int:
        return self.heap + self.mapped


@dataclass(frozen=True)
class PeakBytes:
    """Of a phase: the most bytes of heap, of mapped tensors, and of both together at any moment."""

    heap: int = 0
    mapped: int = 0
    total: int = 0

    @classmethod
    def of(cls, moments: Iterable[TensorBytes]) -> PeakBytes:
        rooms = list(moments) or [TensorBytes()]
        return cls(max(r.heap for r in rooms), max(r.mapped for r in rooms), max(r.total for r in rooms))
