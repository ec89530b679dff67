"""JSON that any reader accepts: no NaN, no infinity, one object a line.

Observation tokens carry NaN log-probs and a metric may diverge; both become ``null`` and are counted, never a number.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any


def dumps(value: Any) -> tuple[str, int]:
    """(one line of strict JSON, count of numbers that were not finite and are now null).

    Mappings, sequences, dataclasses, enumerations, paths and numpy's and torch's scalars and arrays are understood.

    Raises:
        TypeError: something has no JSON form.
    """
    counter = _Counter()
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain), 0
    except ValueError:
        return json.dumps(counter.clean(value), allow_nan=False, ensure_ascii=False), counter.non_finite


class _Counter:
    """Copies a value with null for what is not finite; the slow path, taken only when there is something."""

    def __init__(self) -> None:
        self.non_finite = 0

    def clean(self, value: Any) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else self._miss()
        if value is None or (isinstance(value, str | int) and not isinstance(value, Enum)):
            return value
        if isinstance(value, Mapping):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(item) for item in value]
        return self.clean(_plain(value))

    def _miss(self) -> None:
        self.non_finite += 1


def _plain(value: Any) -> Any:
    """The nearest thing that ``json`` knows."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        return value.tolist()
    if hasattr(value, "__fspath__"):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r:.80}")
