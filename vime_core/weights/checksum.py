"""Checksums of bytes that are computed where they are: xxh3 by the host, two sums of 32-bit words a block on a device.

Bytes that never leave a device cannot be hashed by the host without copying them there. The sums catch what goes wrong
on the way (a stale bucket, a torn one, one in the wrong place); they are no defence against an adversary. All numbers
stay below 2**63, so no device rounds or wraps them.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    import torch

#: words whose sums are taken at a time; bounds the memory that the widened copy needs
BLOCK = 1 << 21
#: period of the position weights, a prime: words that change places with others change the second sum
PERIOD = 251


def sums(flat: torch.Tensor) -> list[tuple[int, int]]:
    """(sum of words, sum of weighted words) of each block of ``flat`` [n] uint8, n divisible by 4."""
    import torch

    words = flat.view(torch.int32)
    positions = torch.arange(min(BLOCK, max(words.numel(), 1)), device=flat.device, dtype=torch.int64) % PERIOD + 1
    pairs = []
    for block in words.split(BLOCK):
        wide = block.to(torch.int64)
        pairs.append(torch.stack((wide.sum(), (wide * positions[: wide.numel()]).sum())))
    # one copy to the host for all blocks, not one a block
    return [(int(a), int(b)) for a, b in torch.stack(pairs).cpu().tolist()]


def view_of(flat: torch.Tensor) -> memoryview:
    """The bytes of a CPU tensor [n] uint8, by their address: memory that numpy has seen once can never be given up."""
    return memoryview((ctypes.c_ubyte * flat.numel()).from_address(flat.data_ptr())).cast("B")


def checksum_of(flat: torch.Tensor, method: str) -> str:
    """``method:hex``. ``method``: "xxh3" in host memory, "sums" on a device."""
    if method == "xxh3":
        host = flat.cpu()
        return f"xxh3:{xxhash.xxh3_128(view_of(host)).hexdigest()}"
    packed = b"".join(struct.pack("<qq", *pair) for pair in sums(flat))
    return f"sums:{hashlib.blake2s(packed, digest_size=16).hexdigest()}"


class Digest:
    """Takes the tables of buckets in order; equal digests mean equal tables, and so equal checksums of all bytes."""

    def __init__(self) -> None:
        self._state = hashlib.blake2s(digest_size=16)

    def update(self, table: bytes) -> None:
        self._state.update(struct.pack("<q", len(table)) + table)

    def hexdigest(self) -> str:
        return self._state.hexdigest()
