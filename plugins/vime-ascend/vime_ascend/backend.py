"""The Ascend device backend, which this release does not have yet.

The target exists so that asking for it says in one line what is missing on this machine.
"""

from __future__ import annotations

from typing import Any

from vime_ascend.probe import present
from vime_core import VimeError


def __getattr__(name: str) -> Any:
    if name == "AscendBackend":
        raise VimeError(f"{present()[1]}; say --device to run on another device")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
