"""Bytes as people read them."""

from __future__ import annotations

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def size(count: float, digits: int = 1) -> str:
    """``1.5 GiB``, ``12 MiB``, ``3 KiB``. ``digits`` are those of GiB; smaller units get one less."""
    if abs(count) >= GIB:
        return f"{count / GIB:.{digits}f} GiB"
    unit, name = (MIB, "MiB") if abs(count) >= MIB else (KIB, "KiB")
    return f"{count / unit:.{digits - 1}f} {name}"
