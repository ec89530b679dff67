"""What travels with a weight update besides the bytes: names, types, places, and the sender's digest.

The trainer writes one manifest a sync; every worker of every engine checks it against its own model and against the
bytes before anything is loaded. It crosses process and HTTP borders as a plain dictionary (``to_wire``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class TensorEntry:
    """One tensor under its Hugging Face name: ``dtype`` as torch calls it, ``offset`` and size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


@dataclass(frozen=True)
class Manifest:
    """One version of the weights.

    Attributes:
        version: the version that engines serve once it is committed.
        kind: how the bytes travel: "shared_memory" or "gloo".
        digest: xxh3_128 of the tensors' bytes in the order of ``tensors`` (without alignment gaps), computed by the
            sender from its own tensors.
        size: bytes of the whole buffer, alignment gaps included.
        source: where a receiver finds the bytes; its keys belong to the kind (``path``, or ``host`` and ``port``).
    """

    version: int
    kind: str
    digest: str
    size: int
    tensors: tuple[TensorEntry, ...]
    source: Mapping[str, Any]

    @property
    def names(self) -> int:
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors alone."""
        return sum(entry.nbytes for entry in self.tensors)

    def with_source(self, **more: Any) -> Manifest:
        return dataclasses.replace(self, source={**self.source, **more})

    def to_wire(self) -> dict[str, Any]:
        """Plain values only, columns instead of rows: a model can have tens of thousands of tensors."""
        return {
            "version": self.version,
            "kind": self.kind,
            "digest": self.digest,
            "size": self.size,
            "names": [e.name for e in self.tensors],
            "dtypes": [e.dtype for e in self.tensors],
            "shapes": [list(e.shape) for e in self.tensors],
            "offsets": [e.offset for e in self.tensors],
            "source": dict(self.source),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Manifest:
        """Inverse of :meth:`to_wire`.

        Raises:
            ValueError: columns of different lengths, or a type that no tensor has.
        """
        columns = [wire[key] for key in ("names", "dtypes", "shapes", "offsets")]
        if len({len(column) for column in columns}) != 1:
            raise ValueError(f"manifest columns differ in length: {[len(column) for column in columns]}")
        unknown = set(wire["dtypes"]) - set(ITEM_SIZES)
        if unknown:
            raise ValueError(f"manifest has tensors of unknown type: {sorted(unknown)}")
        entries = tuple(TensorEntry(n, d, tuple(s), o) for n, d, s, o in zip(*columns))
        return cls(wire["version"], wire["kind"], wire["digest"], wire["size"], entries, dict(wire["source"]))
