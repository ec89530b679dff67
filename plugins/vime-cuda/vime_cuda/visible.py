"""CUDA_VISIBLE_DEVICES: numbers, UUIDs ("GPU-...", also shortened) or partitions ("MIG-...").

An empty list is not the same as none: it hides every device. The list ends at the first entry that CUDA does not know,
and "-1" is used to end it on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence

from vime_core.api import VisibleDevices

VISIBLE = VisibleDevices(
    "CUDA_VISIBLE_DEVICES",
    examples="numbers (0,1,2,3) or UUIDs (GPU-..., MIG-...)",
    prefixes=("GPU-", "MIG-"),
    end="-1",
    empty_hides=True,
)
#: Ray's name of the resource
RESOURCE = "GPU"
#: tells Ray to leave the variable alone
NOSET = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"


def partitions(visible: Sequence[str] | None) -> int:
    """How many of the entries are MIG partitions."""
    return sum(entry.startswith("MIG-") for entry in visible or ())
