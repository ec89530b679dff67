"""CUDA_VISIBLE_DEVICES: numbers or UUIDs, and the place of a device in such a list.

A process that sees ``4,5,6,7`` calls physical device 6 its device 2. An entry may also be a UUID ("GPU-...", also
shortened) or a partition ("MIG-..."). An empty list is not the same as none: it hides every device. The list ends at
the first entry that CUDA does not know, and "-1" is used to end it on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vime_core.api import ConfigError

#: variable of the runtime; what Ray sets unless it is told not to
VARIABLE = "CUDA_VISIBLE_DEVICES"
#: tells Ray not to
NOSET = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"

_UUIDS = ("GPU-", "MIG-")


def parse(text: str) -> list[str]:
    """Entries in the order given, up to a "-1".

    Raises:
        ConfigError: an entry that CUDA would not know, or one twice.
    """
    found: list[str] = []
    for entry in (part.strip() for part in text.split(",") if part.strip()):
        if entry == "-1":
            break
        if not (entry.isdigit() or entry.startswith(_UUIDS)):
            raise ConfigError(
                f"{VARIABLE}={text}: {entry!r} is no device; write numbers (0,1,2,3) or UUIDs (GPU-..., MIG-...)"
            )
        found.append(entry)
    if len(set(found)) != len(found):
        raise ConfigError(f"{VARIABLE}={text}: a device is named twice")
    return found


def seen(environ: Mapping[str, str]) -> list[str] | None:
    """Entries of the devices that the process sees, or None for all of the machine."""
    text = environ.get(VARIABLE)
    return None if text is None else parse(text)


def index_of(device: str, visible: Sequence[str] | None) -> int:
    """What ``set_device`` takes for a device as Ray names it: a number of the machine, or an entry of the list.

    Raises:
        ConfigError: the process does not see that device.
    """
    if visible is None and device.isdigit():
        return int(device)
    if visible is None or device not in visible:
        listed = "(unset)" if visible is None else ",".join(visible)
        raise ConfigError(f"device {device} is not among the visible ones: {VARIABLE}={listed}")
    return list(visible).index(device)


def partitions(visible: Sequence[str] | None) -> int:
    """How many of the entries are MIG partitions."""
    return sum(entry.startswith("MIG-") for entry in visible or ())
