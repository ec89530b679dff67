"""Trainer memory given back while an engine has the device, by resizing storages: nothing but torch, on any device.

A storage's bytes are copied to the host and the storage is resized to nothing; views of it stay what they are, and have
their values again after the storage was resized back and filled. So Megatron's flat buffers go with all parameters and
gradients that are views of them, and no allocator has to be hooked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
        pin: page-lock the host copies.
    """

    def __init__(self, release: Callable[[], None], pin: bool = False) -> None:
        self._release, self._pin = release, pin
        self._parked: list[_Parked] = []

    @property
    def away(self) -> bool:
        return bool(self._parked)

    def out(self, keep: Iterable[torch.Tensor], drop: Iterable[torch.Tensor] = ()) -> int:
        """Give up the memory of the tensors; bytes given up.

        Args:
            keep: whose values come back.
            drop: whose values need not (gradients between two steps): they come back as zeros.

        Raises:
            RuntimeError: the memory is given up already.
        """
        if self._parked:
            raise RuntimeError("the trainer's memory is given up already; call back() first")
        for tensors, wanted in ((keep, True), (drop, False)):
            for storage in _storages(tensors):
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
        if nbytes == 0:  # shared with a tensor seen before
            return
        host = None
        if wanted:
            copy = _bytes(storage).cpu() if storage.device.type != "cpu" else _bytes(storage).clone()
            host = copy.pin_memory() if self._pin else copy
        storage.resize_(0)
        self._parked.append(_Parked(storage, nbytes, host))

    @staticmethod
    def _restore(one: _Parked) -> None:
        one.storage.resize_(one.nbytes)
        flat = _bytes(one.storage)
        if one.host is None:
            flat.zero_()
        else:
            flat.copy_(one.host)


def _storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found.setdefault(storage.data_ptr(), storage)
    return list(found.values())


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as [n] uint8, sharing its memory."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
