"""Lists of visible devices: numbers in numeric order, and the place of a device in such a list.

A process that sees ``4,5,6,7`` calls physical device 6 its device 2. Ray hands out physical ids, in any order, so an id
is never an index: the index is the id's position in the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vime_core.api import ConfigError

#: variable of the runtime; what Ray sets unless it is told not to
VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"


def parse(text: str) -> list[int]:
    """Ids in the order given; "0-3" is 0,1,2,3.

    Raises:
        ConfigError: not a list of ids, or an id twice.
    """
    ids: list[int] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(f"{VARIABLE}={text}: {part!r} is no device id; write numbers, as in 0,1,2,3")
        ids += range(int(first), int(last or first) + 1)
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{VARIABLE}={text}: a device is named twice")
    return ids


def ordered(ids: Iterable[int | str]) -> str:
    """As the variable wants it, by number: as text, "10" would stand before "2"."""
    return ",".join(str(one) for one in sorted(int(one) for one in ids))


def seen(environ: Mapping[str, str]) -> list[int] | None:
    """Ids that the process sees, or None for all of the machine."""
    text = environ.get(VARIABLE, "")
    return parse(text) if text else None


def index_of(device: int, visible: Sequence[int] | None) -> int:
    """What ``set_device`` takes for a physical id.

    Raises:
        ConfigError: the process does not see that device.
    """
    if visible is None:
        return device
    if device not in visible:
        raise ConfigError(f"device {device} is not among the visible ones: {VARIABLE}={','.join(map(str, visible))}")
    return list(visible).index(device)
