"""The trainer's end of a weight sync: turns an iterator of named tensors into bytes that engines can take.

Two buffers take turns, so that the bytes the engines serve from stay whole while the next version is written: what an
engine goes back to after a failed update is still there.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
import xxhash

from vime_core.api.errors import ConfigError, SyncError
from vime_core.runtime.ports import reachable_host
from vime_core.weights.gloo_link import GlooLink, RendezvousStore
from vime_core.weights.manifest import Manifest, TensorEntry, aligned
from vime_core.weights.shared_buffer import CHUNK, SharedBuffer, map_bytes

if TYPE_CHECKING:
    from vime_core.config.sections import Config

NamedTensors = Iterable[tuple[str, torch.Tensor]]

#: how the bytes travel unless a sync says otherwise
KIND = "shared_memory"


class Publisher:
    """Held by trainer rank 0 for the whole run; the other ranks only take part in making ``named_tensors``.

    Args:
        bucket: bytes of one message of a broadcast.
        timeout: deadline of a broadcast, seconds.
        host: this machine's address as the engines see it.
        corrupt: number of the sync (from 1) whose written bytes get a fault after their digest was taken; 0 is none.
    """

    def __init__(self, bucket: int, timeout: float, host: str = "127.0.0.1", corrupt: int = 0) -> None:
        self.bucket, self.timeout, self.corrupt = bucket, timeout, corrupt
        self._stores: dict[int, SharedBuffer] = {}  # buffer number -> buffer
        self._latest: Manifest | None = None
        self._turn = 0
        self._count = 0
        self._meeting = RendezvousStore(host)

    @classmethod
    def create(cls, config: Config, name: str = "") -> Publisher:
        """The publisher of a run, whatever weight sync ``name`` carries its bytes. Cheap: no memory before the first
        publish, no server before the first broadcast.

        Raises:
            ConfigError: ``--sync-fault`` is not one.
        """
        sync = config.sync
        deadline, fault = sync.vllm_weight_transfer_timeout_sec, fault_sync(sync.sync_fault)
        return cls(sync.update_weight_buffer_size, deadline, reachable_host(), fault)

    def publish(self, named_tensors: NamedTensors, version: int) -> Manifest:
        """Copy the tensors (consumed one at a time, from any device) and describe them.

        Publishing the latest version again replaces it; another version goes to the other buffer.
        """
        if self._latest is not None and self._latest.version != version:
            self._turn = 1 - self._turn
        store = self._stores.get(self._turn) or self._stores.setdefault(self._turn, SharedBuffer(f"vime-{self._turn}"))
        entries, digest, size = _write(store, named_tensors)
        store.resize(size)
        self._count += 1
        if self._count == self.corrupt:
            store.flip(entries[len(entries) // 2].offset)
        source = {
            "path": store.path,
            "host": self._meeting.host,
            "port": self._meeting.port,
            "group": f"{version}-{self._count}-{digest}",
            "bucket": self.bucket,
            "timeout": self.timeout,
        }
        self._latest = Manifest(version, KIND, digest, size, entries, source)
        return self._latest

    def broadcast(self, version: int, world: int) -> None:
        """Send the published bytes to ``world - 1`` engine workers, which join the group that the manifest names.

        Raises:
            SyncError: ``version`` is not the latest published one.
        """
        manifest = self._latest
        if manifest is None or manifest.version != version:
            raise SyncError(f"weights version {version} cannot be broadcast: it is not the latest published")
        self._meeting.open()
        flat = map_bytes(manifest.source["path"], manifest.size)
        GlooLink(manifest.with_source(world=world).source, 0).broadcast(flat)

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._meeting.close()
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


def _write(store: SharedBuffer, named_tensors: NamedTensors) -> tuple[tuple[TensorEntry, ...], str, int]:
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
    # by its address: a tensor that numpy has seen once can never give its memory up again
    view = memoryview((ctypes.c_ubyte * flat.numel()).from_address(flat.data_ptr())).cast("B")
    for start in range(0, len(view), CHUNK):
        yield view[start : start + CHUNK]
