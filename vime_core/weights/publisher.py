"""The trainer's end of a weight sync: turns an iterator of named tensors into bytes that engines can take.

Two buffers take turns, so that the bytes the engines serve from stay whole while the next version is written: what an
engine goes back to after a failed update is still there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
import xxhash

from vime_core.engine.byte_store import CHUNK, ByteStore, map_bytes
from vime_core.engine.manifest import Manifest, TensorEntry, aligned
from vime_core.errors import ConfigError, SyncError

if TYPE_CHECKING:
    from vime_core.config.sections import Config

NamedTensors = Iterable[tuple[str, torch.Tensor]]

#: how the bytes travel unless a sync says otherwise
KIND = "shared_memory"


class Publisher:
    """Held by every trainer rank for the whole run. Rank 0 writes; the others only take part in making the tensors.

    Args:
        bucket: bytes of one message of a broadcast.
        corrupt: number of the sync (from 1) whose written bytes get a fault after their digest was taken; 0 is none.
        writes: False on the ranks that do not write.
    """

    def __init__(self, bucket: int, corrupt: int = 0, writes: bool = True) -> None:
        self.bucket, self.corrupt, self.writes = bucket, corrupt, writes
        self._stores: dict[int, ByteStore] = {}  # buffer number -> buffer
        self._latest: Manifest | None = None
        self._turn = 0
        self._count = 0

    @classmethod
    def of(cls, config: Config, rank: int) -> Publisher:
        """The publisher of one trainer rank. Cheap; nothing is allocated before the first publish."""
        return cls(config.sync.update_weight_buffer_size, fault_sync(config.sync.sync_fault), writes=rank == 0)

    def publish(self, named_tensors: NamedTensors, version: int) -> Manifest | None:
        """Copy the tensors (consumed one at a time, from any device) and describe them; None on other ranks.

        Publishing the latest version again replaces it; a new one goes to the other buffer.
        """
        if not self.writes:
            for _ in named_tensors:
                pass
            return None
        if self._latest is not None and self._latest.version != version:
            self._turn = 1 - self._turn
        store = self._stores.get(self._turn) or self._stores.setdefault(self._turn, ByteStore(f"vime-{self._turn}"))
        entries, digest, size = _write(store, named_tensors)
        store.resize(size)
        self._count += 1
        if self._count == self.corrupt:
            store.flip(entries[len(entries) // 2].offset)
        self._latest = Manifest(version, KIND, digest, size, entries, {"path": store.path, "pid": os.getpid()})
        return self._latest

    def broadcast(self, manifest: Manifest) -> None:
        """Send the bytes of the latest publish to the engines' workers, as ``manifest.source`` says: ``host`` and
        ``port`` of the meeting point, ``group``, ``world``, ``bucket`` and ``timeout``. Nothing on other ranks.

        Raises:
            SyncError: another version was published meanwhile.
        """
        if not self.writes:
            return
        if self._latest is None or self._latest.digest != manifest.digest:
            raise SyncError(
                f"weights version {manifest.version} cannot be broadcast: they are not the latest published"
            )
        from vime_core.engine.gloo_link import GlooLink

        s = manifest.source
        flat = map_bytes(self._stores[self._turn].path, manifest.size)
        GlooLink(s["host"], s["port"], s["group"], 0, s["world"], s["timeout"]).broadcast(flat, s["bucket"])

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()


def fault_sync(fault: str | None) -> int:
    """The N of "corrupt:N"; 0 for None.

    Raises:
        ConfigError: another text.
    """
    if fault is None:
        return 0
    match = re.fullmatch(r"corrupt:([1-9]\d*)", fault)
    if match is None:
        raise ConfigError(f"--sync-fault {fault}: must be corrupt:N, N the number of the sync from 1")
    return int(match.group(1))


def _write(store: ByteStore, named_tensors: NamedTensors) -> tuple[tuple[TensorEntry, ...], str, int]:
    """(entries, digest of the tensors' own bytes, size of the buffer)."""
    entries, state, end = [], xxhash.xxh3_128(), 0
    for name, tensor in named_tensors:
        offset = aligned(end)
        entries.append(TensorEntry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset))
        end = offset
        for piece in _pieces(tensor):
            state.update(piece)
            store.write(end, piece)
            end += len(piece)
    return tuple(entries), state.hexdigest(), end


def _pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The tensor's bytes, some at a time, so that digest and copy both find them in the cache."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    view = memoryview(flat.numpy())  # type: ignore[arg-type]
    return (view[start : start + CHUNK] for start in range(0, len(view), CHUNK))
