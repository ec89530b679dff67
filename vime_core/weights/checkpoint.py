"""Where a worker's weights can be read from, now and again for a rollback."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Source(Protocol):
    """A full set of weights."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]: ...

    def intact(self) -> bool:
        """The bytes are still those that were once accepted."""


class Checkpoint:
    """The Hugging Face folder that the engine was started from."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape from the headers of the safetensors files; empty where the folder has none."""
        return {
            name: tuple(entry["shape"])
            for file in self._files()
            for name, entry in _header(file).items()
            if name != "__metadata__"
        }

    def intact(self) -> bool:
        return bool(self._files())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        from safetensors import safe_open

        for file in self._files():
            with safe_open(str(file), framework="pt") as content:
                for name in content.keys():  # noqa: SIM118 (not a mapping)
                    yield name, content.get_tensor(name)

    def _files(self) -> list[Path]:
        """Those that the index names, where there is one: a folder may hold the same weights in a second layout."""
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            names = set(json.loads(index.read_text())["weight_map"].values())
            return sorted(self.folder / name for name in names)
        return sorted(self.folder.glob("*.safetensors")) if self.folder.is_dir() else []


def _header(file: Path) -> Mapping[str, Any]:
    """The format's own table of contents: 8 bytes of length, then JSON."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        return json.loads(stream.read(length))
