"""A runtime's variable of visible devices: the one place that reads such a list, and finds a device's place in it.

A process that sees ``4,5,6,7`` calls physical device 6 its device 2. Ray hands out physical ids, in any order, so an id
is never an index: the index is the id's position in the list.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from vime_core.api.errors import ConfigError


@dataclass(frozen=True)
class VisibleDevices:
    """How one runtime spells its list.

    Attributes:
        variable: of the environment; what Ray sets unless it is told not to.
        examples: of right entries, for messages.
        ranges: "0-3" is 0,1,2,3.
        prefixes: an entry that begins with one of them is a device's own id.
        end: the entry that ends the list on purpose.
        empty_hides: an empty list hides every device; otherwise it is the same as none.
    """

    variable: str
    examples: str = "numbers, as in 0,1,2,3"
    ranges: bool = False
    prefixes: tuple[str, ...] = ()
    end: str | None = None
    empty_hides: bool = False

    def parse(self, text: str) -> list[str]:
        """Entries in the order given, up to the list's end.

        Raises:
            ConfigError: an entry that the runtime would not know, or one twice.
        """
        found: list[str] = []
        for entry in (part.strip() for part in text.split(",") if part.strip()):
            if entry == self.end:
                break
            found += self._devices(entry, text)
        if len(set(found)) != len(found):
            raise ConfigError(f"{self.variable}={text}: a device is named twice")
        return found

    def _devices(self, entry: str, text: str) -> Iterator[str]:
        first, dash, last = entry.partition("-")
        if entry.isdigit():
            yield str(int(entry))
        elif self.prefixes and entry.startswith(self.prefixes):
            yield entry
        elif self.ranges and dash and first.isdigit() and last.isdigit():
            yield from map(str, range(int(first), int(last) + 1))
        else:
            raise ConfigError(f"{self.variable}={text}: {entry!r} is no device; write {self.examples}")

    def seen(self, environ: Mapping[str, str]) -> list[str] | None:
        """Entries of the devices that the process sees, or None for all of the machine."""
        text = environ.get(self.variable)
        if text is None or not (text or self.empty_hides):
            return None
        return self.parse(text)

    def index_of(self, device: str, visible: Sequence[str] | None) -> int:
        """What ``set_device`` takes for a device as Ray names it: a number of the machine, or an entry of the list.

        Raises:
            ConfigError: the process does not see that device.
        """
        if visible is None and device.isdigit():
            return int(device)
        if visible is None or device not in visible:
            listed = "(unset)" if visible is None else ",".join(visible)
            raise ConfigError(f"device {device} is not among the visible ones: {self.variable}={listed}")
        return list(visible).index(device)

    def index_of_rank(self, rank: int, visible: Sequence[str] | None) -> int:
        """The rank's place among the visible devices; a process that sees one device uses that one.

        Raises:
            ConfigError: the process sees no device.
        """
        if visible is None:
            return rank
        if not visible:
            raise ConfigError(f"no device is visible: {self.variable} hides them; unset it, or name devices")
        return rank % len(visible)

    def narrow(self, environ: MutableMapping[str, str], devices: Iterable[str]) -> None:
        """``environ`` shows these devices only; none named: as it is."""
        text = by_number(devices)
        if text:
            environ[self.variable] = text


def by_number(devices: Iterable[str]) -> str:
    """As a variable wants them: as text, "10" would stand before "2". Ids that are no numbers come last."""
    return ",".join(sorted(devices, key=lambda one: (not one.isdigit(), int(one) if one.isdigit() else 0, one)))


def assigned_devices(resource: str) -> list[str]:
    """What Ray reserved of ``resource`` for this actor, as Ray names it; [] outside of Ray or where that is nothing."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return []
    given = ray.get_runtime_context().get_accelerator_ids().get(resource, [])
    text = by_number(str(one) for one in given)
    return text.split(",") if text else []
