"""A digest of bytes that is computed where they are: two sums of 32-bit words for each block, on any device.

Bytes that never leave a device cannot be hashed by the host without copying them there. The sums catch what goes wrong
on the way (a stale bucket, a torn one, one in the wrong place); they are no defence against an adversary. All numbers
stay below 2**63, so no device rounds or wraps them.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

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
    places = torch.arange(min(BLOCK, max(words.numel(), 1)), device=flat.device, dtype=torch.int64) % PERIOD + 1
    pairs = []
    for block in words.split(BLOCK):
        wide = block.to(torch.int64)
        pairs.append(torch.stack((wide.sum(), (wide * places[: wide.numel()]).sum())))
    # one copy to the host for all blocks, not one a block
    return [(int(a), int(b)) for a, b in torch.stack(pairs).cpu().tolist()]


class Digest:
    """Takes what travels in order; equal digests mean equal tables and equal bytes."""

    def __init__(self) -> None:
        self._state = hashlib.blake2s(digest_size=16)

    def update(self, table: bytes, flat: torch.Tensor) -> None:
        """``table`` describes the tensors in ``flat``."""
        self._state.update(struct.pack("<q", len(table)) + table)
        for pair in sums(flat):
            self._state.update(struct.pack("<qq", *pair))

    def hexdigest(self) -> str:
        return self._state.hexdigest()
