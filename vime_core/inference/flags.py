"""Python values as the flags of a command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_flags(options: Mapping[str, Any], *, negatable: bool) -> list[str]:
    """``{"max_model_len": 4096}`` -> ``["--max-model-len", "4096"]``. None is left out.

    Args:
        negatable: False becomes ``--no-name``; otherwise it is left out.
    """
    flags: list[str] = []
    for key, value in options.items():
        name = key.replace("_", "-")
        if value is True:
            flags.append(f"--{name}")
        elif value is False:
            flags += [f"--no-{name}"] if negatable else []
        elif isinstance(value, Mapping):
            flags += [f"--{name}", json.dumps(value)]
        elif isinstance(value, list | tuple):
            flags += [f"--{name}", *map(str, value)]
        elif value is not None:
            flags += [f"--{name}", str(value)]
    return flags
