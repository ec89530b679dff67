"""Device memory given back for a while, by resizing storages: nothing but torch, on any device.

A storage's bytes are copied to the host and the storage is resized to nothing; views of it stay what they are, and have
their values again after the storage was resized back and filled. So Megatron's flat buffers go with all parameters and
gradients that are views of them, and no allocator has to be hooked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch

from vime_core.api import TrainerError


@dataclass
class _Parked:
    storage: torch.UntypedStorage
    nbytes: int
    host: torch.Tensor | None  # None: the values are not needed again


class Offload:
    """Parks the storages behind tensors.

    Args:
        release: called when memory was given up, to return the allocator's cache to the device; never while a memory
            pool is in use.
        pin: page-lock the host copies. They are kept for the next time then, because locking pages is slow.
    """

    def __init__(self, release: Callable[[], None], pin: bool = False) -> None:
        self._release, self._pin = release, pin
        self._parked: list[_Parked] = []
        self._hosts: dict[int, torch.Tensor] = {}

    @property
    def away(self) -> bool:
        return bool(self._parked)

    def out(
        self,
        keep: Iterable[torch.Tensor],
        drop: Iterable[torch.Tensor] = (),
        spare: Iterable[torch.Tensor] = (),
    ) -> int:
        """Give up the memory of the tensors; bytes given up.

        Args:
            keep: whose values come back.
            drop: whose values need not (gradients between two steps): they come back as zeros.
            spare: stay where they are, with all that shares their memory.

        Raises:
            TrainerError: the memory is given up already.
        """
        if self._parked:
            raise TrainerError("this memory is given up already; take it back first")
        spared = {key_of(storage) for storage in storages(spare)}
        for tensors, wanted in ((keep, True), (drop, False)):
            for storage in storages(tensors):
                if key_of(storage) not in spared:
                    self._park(storage, wanted)
        self._release()
        return sum(one.nbytes for one in self._parked)

    def back(self) -> int:
        """Take the memory again, with its values; bytes taken. Nothing to do: 0."""
        taken = sum(one.nbytes for one in self._parked)
        while self._parked:
            self._restore(self._parked.pop())
        return taken

    def _park(self, storage: torch.UntypedStorage, wanted: bool) -> None:
        nbytes = storage.nbytes()
        host = self._host(storage).copy_(_bytes(storage)) if wanted else None
        storage.resize_(0)
        self._parked.append(_Parked(storage, nbytes, host))

    def _host(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """[nbytes] uint8 in host memory."""
        kept = self._hosts.get(key_of(storage))
        if kept is None or kept.numel() != storage.nbytes():
            kept = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=self._pin)
            if self._pin:
                self._hosts[key_of(storage)] = kept
        return kept

    @staticmethod
    def _restore(one: _Parked) -> None:
        one.storage.resize_(one.nbytes)
        flat = _bytes(one.storage)
        if one.host is None:
            flat.zero_()
        else:
            flat.copy_(one.host)


def storages(tensors: Iterable[torch.Tensor]) -> Collection[torch.UntypedStorage]:
    """The storages behind tensors, each once; those without memory are left out."""
    found = {key_of(storage): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
    return [storage for storage in found.values() if storage.nbytes()]


def key_of(storage: torch.UntypedStorage) -> int:
    """Tells storages apart, also those that hold nothing, whose address is 0."""
    return storage._cdata


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as [n] uint8, sharing its memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
