"""Names and shapes of the tensors that a model was built from, against those that an update brings."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime_core.api import SyncError
from vime_core.weights.manifest import TensorEntry

#: a head that shares the embedding's weights may be sent or left out
TIED_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class ModelLayout:
    """``shapes``: name -> shape of the model's checkpoint; empty when unknown, then an update is compared with itself
    alone. ``tied``: embedding and head are one parameter."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: bool = False

    @classmethod
    def of_checkpoint(cls, folder: str, tied: bool = False) -> ModelLayout:
        """From the headers of the safetensors files of a Hugging Face folder."""
        return cls({name: shape for file in _files(Path(folder)) for name, shape in _shapes(file)}, tied)

    def require(self, entries: Sequence[TensorEntry], complete: bool) -> None:
        """That ``entries`` are tensors of this model; if ``complete``, all of them.

        Raises:
            SyncError: with what is wrong, one clause a kind.
        """
        twice = [name for name, count in Counter(entry.name for entry in entries).items() if count > 1]
        errors = {"names sent twice": twice, **(self._compared(entries, complete) if self.shapes else {})}
        text = "; ".join(f"{what}: {_some(names)}" for what, names in errors.items() if names)
        if text:
            raise SyncError(text)

    def _compared(self, entries: Sequence[TensorEntry], complete: bool) -> dict[str, list[str]]:
        sent, expected = {entry.name: entry.shape for entry in entries}, self.shapes
        optional = {TIED_HEAD} if self.tied else set()
        return {
            "names missing": sorted(expected.keys() - sent.keys() - optional) if complete else [],
            "names that the model does not have": sorted(sent.keys() - expected.keys() - optional),
            "shapes that differ": [
                f"{name} {list(sent[name])} for {list(expected[name])}"
                for name in sorted(sent.keys() & expected.keys())
                if sent[name] != expected[name]
            ],
        }


def _files(folder: Path) -> list[Path]:
    """Those that the index names, where there is one: a folder may hold the same weights in a second layout."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return sorted(folder / name for name in set(json.loads(index.read_text())["weight_map"].values()))
    return sorted(folder.glob("*.safetensors")) if folder.is_dir() else []


def _shapes(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """From the format's own table of contents: 8 bytes of length, then JSON."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, tuple(entry["shape"])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
