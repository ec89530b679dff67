"""Only the values that changed: their places and what they are now, in one run of bytes. Pure torch, on any device.

Elements are compared by their bits, so a NaN that stays is no change and a zero that turns its sign is one. A delta is
worth it below the share of changed elements at which place and value together cost less than all values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.api import SyncError
from vime_core.weights.manifest import aligned

if TYPE_CHECKING:
    import torch

#: bytes of one place
_PLACE = 4
#: element size -> integer type that holds its bits
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def encode(old: torch.Tensor, new: torch.Tensor, width: int) -> tuple[torch.Tensor, int] | None:
    """(bytes, number of changes) that lead from ``old`` to ``new``, both [n] uint8; None where all of ``new`` is less.

    Args:
        width: bytes of one element.
    """
    import torch

    before, after = _elements(old, width), _elements(new, width)
    places = (before != after).nonzero().flatten()
    count = places.numel()
    size = aligned(count * _PLACE) + aligned(count * width)
    if size >= new.numel() or after.numel() > torch.iinfo(torch.int32).max:
        return None
    flat = torch.zeros(size, dtype=torch.uint8, device=new.device)
    _put(flat, 0, places.to(torch.int32))
    _put(flat, aligned(count * _PLACE), after[places])
    return flat, count


def apply(old: torch.Tensor, delta: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """``new`` of :func:`encode`, in memory of its own.

    Raises:
        SyncError: the delta is not one of a run of bytes of this size.
    """
    import torch

    start = aligned(count * _PLACE)
    if start + count * width > delta.numel():
        raise SyncError(f"a delta of {count} values of {width} bytes cannot lie in {delta.numel()} bytes")
    places = delta[: count * _PLACE].view(torch.int32).to(torch.int64)
    values = delta[start : start + count * width].view(getattr(torch, _BITS[width]))
    new = old.clone()
    elements = _elements(new, width)
    if count and (int(places.min()) < 0 or int(places.max()) >= elements.numel()):
        raise SyncError(f"a delta changes elements {int(places.min())} to {int(places.max())} of {elements.numel()}")
    elements[places] = values
    return new


def _elements(flat: torch.Tensor, width: int) -> torch.Tensor:
    import torch

    return flat.view(getattr(torch, _BITS[width]))


def _put(flat: torch.Tensor, start: int, values: torch.Tensor) -> None:
    import torch

    raw = values.contiguous().view(torch.uint8)
    flat[start : start + raw.numel()].copy_(raw)
