"""Named tensors in and out of flat runs of bytes.

One bucket holds tensors of one element size, each at a multiple of 64 bytes: so a view of any of them is aligned, and
two versions of a bucket can be compared element by element. A tensor lies in one bucket as a whole; one that is larger
than a bucket has a bucket of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from vime_core.api import SyncError
from vime_core.weights.checksum import checksum_of, view_of
from vime_core.weights.manifest import TensorEntry, aligned

if TYPE_CHECKING:
    import torch

    from vime_core.weights.channel import Channel

#: bytes copied and digested at a time: small enough to still be in the cache for the second of the two
CHUNK = 1 << 19


@dataclass(frozen=True)
class Bucket:
    """``flat`` [n] uint8 with the tensors of ``entries`` in it; ``width`` is the bytes of one element. ``checksum`` is
    what the sender says of ``flat``, see :func:`checksum_of`."""

    entries: tuple[TensorEntry, ...]
    flat: torch.Tensor
    width: int
    checksum: str

    def table(self) -> bytes:
        """All but the bytes, as JSON, in columns."""
        columns = {
            "width": self.width,
            "checksum": self.checksum,
            "names": [entry.name for entry in self.entries],
            "dtypes": [entry.dtype for entry in self.entries],
            "shapes": [list(entry.shape) for entry in self.entries],
            "offsets": [entry.offset for entry in self.entries],
        }
        return json.dumps(columns, separators=(",", ":")).encode()

    @classmethod
    def of_table(cls, table: bytes, flat: torch.Tensor) -> Bucket:
        """The bucket that a table describes; its bytes are still to be compared (:meth:`verify`).

        Raises:
            SyncError: the table is none, or points outside of its bucket.
        """
        try:
            columns = json.loads(table)
            rows = zip(columns["names"], columns["dtypes"], columns["shapes"], columns["offsets"], strict=True)
            entries = tuple(TensorEntry(name, dtype, tuple(shape), offset) for name, dtype, shape, offset in rows)
            error = _misplaced(entries, flat.numel())
            bucket = cls(entries, flat, int(columns["width"]), str(columns["checksum"]))
        except (ValueError, KeyError, TypeError) as problem:
            raise SyncError(f"a bucket's table cannot be read ({type(problem).__name__}: {problem})") from problem
        if error:
            raise SyncError(f"a bucket's table is wrong: {error}")
        return bucket

    def verify(self) -> None:
        """Raises SyncError where the bytes are not those that the sender packed."""
        method, _, wanted = self.checksum.partition(":")
        found = checksum_of(self.flat, method).partition(":")[2]
        if found != wanted:
            first = f"the bucket that begins with {self.entries[0].name}" if self.entries else "an empty bucket"
            raise SyncError(f"received bytes have digest {found}, the sender's have {wanted} ({first})")

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Views into ``flat``."""
        import torch

        for entry in self.entries:
            raw = self.flat[entry.offset : entry.offset + entry.nbytes]
            yield entry.name, raw.view(getattr(torch, entry.dtype)).view(entry.shape)


def _misplaced(entries: Iterable[TensorEntry], size: int) -> str:
    """What is wrong where tensors do not lie one after another inside ``size`` bytes."""
    end = 0
    for entry in entries:
        if entry.offset < end:
            return f"{entry.name} overlaps the tensor before it"
        end = entry.offset + entry.nbytes
    return f"tensors need {end} bytes, the bucket has {size}" if end > size else ""


class Packer:
    """Copies tensors into buckets as they come, and keeps none of them.

    Args:
        size: bytes of a bucket.
        channel: gives the memory; without one it is made where the tensors are.
    """

    def __init__(self, size: int, channel: Channel | None = None) -> None:
        self.size, self._channel = aligned(size), channel
        self._open: dict[int, _Open] = {}
        self._spare: dict[int, torch.Tensor] = {}

    def pack(self, named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Bucket]:
        """Buckets as they fill, then the rest. A bucket is valid until the next one is asked for."""
        self._open.clear()  # of an export that broke
        for name, tensor in named:
            width = tensor.element_size()
            nbytes = tensor.numel() * width
            mine = self._open.get(width)
            if mine is not None and mine.end + aligned(nbytes) > mine.flat.numel():
                yield self._open.pop(width).bucket(width)
            if width not in self._open:
                self._open[width] = _Open(self._memory(width, nbytes, tensor))
            self._open[width].add(name, tensor)
        for width in sorted(self._open):
            yield self._open.pop(width).bucket(width)

    def _memory(self, width: int, nbytes: int, like: torch.Tensor) -> torch.Tensor:
        import torch

        size = max(self.size, aligned(nbytes))
        if self._channel is not None and self._channel.keeps_sent:
            return self._channel.bucket(size)
        flat = self._spare.get(width)
        if flat is None or flat.numel() < size or (self._channel is None and flat.device != like.device):
            if self._channel is None:
                flat = torch.empty(size, dtype=torch.uint8, device=like.device)
            else:
                flat = self._channel.bucket(size)
            if size == self.size:  # an outsized one is used once
                self._spare[width] = flat
        return flat


class _Open:
    """A bucket that is being filled. Gaps are zero, so that equal tensors give equal bytes."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat, self.end = flat, 0
        self.entries: list[TensorEntry] = []
        self._state = xxhash.xxh3_128() if flat.device.type == "cpu" else None

    def add(self, name: str, tensor: torch.Tensor) -> None:
        import torch

        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        self.entries.append(TensorEntry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), self.end))
        if self._state is None or raw.device.type != "cpu":
            self.flat[self.end : self.end + raw.numel()].copy_(raw)
            self._took(self.flat[self.end : self.end + raw.numel()])
        elif raw.numel():
            self._copy(view_of(raw), self._state)
        self._took(self.flat[self.end : aligned(self.end)].zero_())

    def _copy(self, source: memoryview, state: xxhash.xxh3_128) -> None:
        """As C copies memory, which is faster than torch does, some at a time, so that the digest finds it in the
        cache."""
        target = view_of(self.flat[self.end : self.end + len(source)])
        for start in range(0, len(source), CHUNK):
            piece = source[start : start + CHUNK]
            target[start : start + CHUNK] = piece
            state.update(piece)
        self.end += len(source)

    def bucket(self, width: int) -> Bucket:
        flat = self.flat[: self.end]
        checksum = checksum_of(flat, "sums") if self._state is None else f"xxh3:{self._state.hexdigest()}"
        return Bucket(tuple(self.entries), flat, width, checksum)

    def _took(self, piece: torch.Tensor) -> None:
        self.end += piece.numel()
        if self._state is not None and piece.numel():
            self._state.update(view_of(piece))
