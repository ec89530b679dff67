"""The sets of versions that were tested together, as data in the package: ``tested.json``, one set a device type.

It is made from ``constraints/*.txt``, which users install from but which a wheel does not carry:
``python -m vime_cli.doctor.matrix``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

#: device type -> file of constraints; a set is here once somebody has run it
SETS = {"cpu": "cpu.txt"}
FILE = "tested.json"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")


@dataclass(frozen=True)
class Matrix:
    """device type -> distribution -> version."""

    sets: Mapping[str, Mapping[str, str]]

    @classmethod
    def packaged(cls) -> Matrix:
        """The one that this release was tested with."""
        return cls(json.loads((resources.files(__package__) / FILE).read_text("utf-8")))

    def of(self, device_type: str) -> Mapping[str, str]:
        """The set of a device type; empty where none was tested."""
        return self.sets.get(device_type, {})


def pins(text: str) -> dict[str, str]:
    """The pinned distributions of a file of constraints."""
    return {match[1]: match[2] for match in map(_PIN.match, text.splitlines()) if match}


def render(constraints: Path) -> str:
    """Text of ``tested.json``."""
    sets = {device: pins((constraints / name).read_text("utf-8")) for device, name in SETS.items()}
    return json.dumps(sets, indent=1) + "\n"


if __name__ == "__main__":
    here = Path(__file__).parent
    (here / FILE).write_text(render(here.parents[2] / "constraints"), "utf-8")
