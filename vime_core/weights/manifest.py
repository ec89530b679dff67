"""What a weight update consists of: names, types, shapes and places of its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: bytes of one element, by torch's name of the type
ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

#: every tensor starts at a multiple of this, so that a view of any type is aligned
ALIGNMENT = 64


def aligned(offset: int, to: int = ALIGNMENT) -> int:
    """The next multiple of ``to``."""
    return -(-offset // to) * to


@dataclass(frozen=True)
class TensorEntry:
    """One tensor under its Hugging Face name: ``dtype`` as torch calls it, ``offset`` (in its bucket) and size in
    bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


@dataclass(frozen=True)
class Manifest:
    """One version of the weights as it was sent, or received.

    Attributes:
        digest: of all buckets' tables in order; a table has the checksum of its bucket's bytes.
        tensors: in the order in which they travelled.
    """

    version: int
    digest: str
    tensors: tuple[TensorEntry, ...]

    @property
    def names(self) -> int:
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors alone."""
        return sum(entry.nbytes for entry in self.tensors)
