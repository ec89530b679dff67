"""A version of the weights as a receiver holds it: buckets in host memory, until they are loaded and for going back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vime_core.weights.bucket import Bucket
from vime_core.weights.checksum import Digest, mark_of
from vime_core.weights.manifest import Manifest, TensorEntry

if TYPE_CHECKING:
    import torch


class ReceivedBuckets:
    """What the core's transfer engine asks of received weights: ``manifest``, ``digest``, ``intact``, ``tensors``."""

    def __init__(self, version: int, kind: str, buckets: Sequence[Bucket], digest: str, method: str) -> None:
        self.version, self.buckets, self._method = version, list(buckets), method
        self.manifest = manifest_of(version, kind, self.buckets, digest)

    def digest(self) -> str:
        """Of the bytes that are held now."""
        digest = Digest()
        for bucket in self.buckets:
            digest.update(bucket.table(), mark_of(bucket.flat, self._method))
        return digest.hexdigest()

    def intact(self) -> bool:
        return self.digest() == self.manifest.digest

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for bucket in self.buckets:
            yield from bucket.tensors()


def manifest_of(version: int, kind: str, buckets: Sequence[Bucket], digest: str) -> Manifest:
    """One manifest for all buckets, as if they lay end to end."""
    entries, start = [], 0
    for bucket in buckets:
        entries += [TensorEntry(e.name, e.dtype, e.shape, start + e.offset) for e in bucket.entries]
        start += bucket.flat.numel()
    return Manifest(version, kind, digest, start, tuple(entries), {})
