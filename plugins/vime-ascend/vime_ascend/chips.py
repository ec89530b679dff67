"""Generations of Ascend chips: how the software names them and how many devices a machine has.

A device is what has an id of its own (``/dev/davinciN``). A card of the A3 carries two dies, each of them a device, so
a machine has 16; code that counts on 8 breaks there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """One generation.

    Attributes:
        name: as Ascend's product line calls it.
        prefixes: what ``torch.npu.get_device_name()`` and the SoC name start with.
        devices: ids of a machine; None where it is not known yet.
        image: the part of the CANN base image's tag that names it.
        soc: SOC_VERSION for building vllm-ascend.
        experimental: the stack below it is not published as a whole.
    """

    name: str
    prefixes: tuple[str, ...]
    devices: int | None
    image: str
    soc: str
    experimental: bool = False


CHIPS = (
    Chip("A2", ("Ascend910B",), 8, "910b", "ascend910b1"),
    Chip("A3", ("Ascend910_93", "Ascend910C"), 16, "a3", "ascend910_9391"),
    Chip("A5", ("Ascend950", "Ascend910_95"), None, "950", "ascend950dt_9582", experimental=True),
)


def chip_of(name: str) -> Chip | None:
    """The generation of a device name such as "Ascend910B1"; None for others (310P, 910A): vime runs on none."""
    return next((chip for chip in CHIPS if any(name.startswith(prefix) for prefix in chip.prefixes)), None)


def chip_named(name: str) -> Chip:
    """By product name, in either case.

    Raises:
        KeyError: no such generation.
    """
    return {chip.name.lower(): chip for chip in CHIPS}[name.lower()]
