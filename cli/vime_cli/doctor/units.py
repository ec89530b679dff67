"""Bytes as people read them."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30


def size(count: int) -> str:
    """``1.5 GiB``, ``12 MiB``."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
