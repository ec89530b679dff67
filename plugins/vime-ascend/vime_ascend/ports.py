"""Port ranges of HCCL: each role its own slice.

HCCL opens listening sockets on the host and on the NPU's network interface. Trainer and engines of one machine that
share a range collide (EI0019, EJ0003), and so do host and NPU sockets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vime_core.api import ConfigError

#: roles that open HCCL communicators, in the order of their slices
ROLES = ("trainer", "engine")
#: ports a slice needs: a communicator takes one a device, and there are several groups
SMALLEST = 64


@dataclass(frozen=True)
class Slice:
    """The ports of one role, both ends included."""

    host: tuple[int, int]
    npu: tuple[int, int]


def slices(text: str) -> dict[str, Slice]:
    """Divide "first-last" among the roles, and each share between host and NPU sockets.

    Raises:
        ConfigError: not a range, outside of 1024 to 65535, or too small.
    """
    first, last = _range(text)
    size = (last - first + 1) // (2 * len(ROLES))
    if size < SMALLEST:
        raise ConfigError(
            f"--ascend-hccl-ports {text}: {last - first + 1} ports are too few; trainer and engines need "
            f"{2 * len(ROLES) * SMALLEST} together"
        )
    starts = iter(range(first, last + 1, size))
    return {role: Slice(_from(next(starts), size), _from(next(starts), size)) for role in ROLES}


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)-(\d+)", text.strip())
    first, last = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if not 1024 <= first < last <= 65535:
        raise ConfigError(f"--ascend-hccl-ports {text}: write FIRST-LAST within 1024-65535, as in 60000-60999")
    return first, last


def _from(start: int, size: int) -> tuple[int, int]:
    return start, start + size - 1
