"""Where a worker's weights can be read from, now and again for a rollback."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vime_core.weights.manifest import Manifest
from vime_core.weights.shared_buffer import digest_of, map_bytes

if TYPE_CHECKING:
    import torch


class Source(Protocol):
    """A full set of weights."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]: ...

    def intact(self) -> bool:
        """The bytes are still those that were once accepted."""


class Received(Source, Protocol):
    """A full set of weights that a trainer sent. ``manifest`` says what it is, and has the sender's digest."""

    manifest: Manifest

    def digest(self) -> str:
        """Of the bytes that arrived, in the way the sender took its own."""


class ReceivedBytes:
    """Bytes that a trainer sent: mapped shared memory, or host memory that gloo filled."""

    def __init__(self, manifest: Manifest, flat: torch.Tensor) -> None:
        self.manifest, self.flat = manifest, flat

    @classmethod
    def of(cls, manifest: Manifest, rank: int) -> ReceivedBytes:
        """Get the bytes as the manifest's kind says; ``rank`` is this worker's in a collective transfer."""
        import torch

        if manifest.kind == "shared_memory":
            return cls(manifest, map_bytes(manifest.source["path"], manifest.size))
        if manifest.kind == "gloo":
            from vime_core.weights.gloo_link import GlooLink

            flat = torch.empty(manifest.size, dtype=torch.uint8)
            GlooLink(manifest.source, rank).broadcast(flat)
            return cls(manifest, flat)
        raise ValueError(f"weights of kind {manifest.kind!r}: this engine takes shared_memory and gloo")

    def digest(self) -> str:
        return digest_of(self.flat, self.manifest)

    def intact(self) -> bool:
        return self.digest() == self.manifest.digest

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        import torch

        for entry in self.manifest.tensors:
            raw = self.flat[entry.offset : entry.offset + entry.nbytes]
            yield entry.name, raw.view(getattr(torch, entry.dtype)).view(entry.shape)


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
