"""What a reward returned, as a score or as the reason why there is none. A zero is never made up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from vime_core.api import Score, Unscored, Verdict


def judge(value: Any, name: str, key: str | None) -> Verdict:
    """Args:
    value: as returned: a number, a Score, an Unscored, or parts by name.
    name: of the reward, for the reason.
    key: the part to train on (``--reward-key``).
    """
    if getattr(value, "ndim", None) == 0:  # a scalar of numpy or torch
        value = value.item()
    if isinstance(value, Unscored):
        return value
    if isinstance(value, Score):
        return _of_parts(value.parts, name, key) if key is not None else _number(value.value, value.parts, name)
    if isinstance(value, Mapping):
        return _of_parts(value, name, key)
    return _number(value, {}, name)


def _of_parts(parts: Mapping[Any, Any], name: str, key: str | None) -> Verdict:
    if key is None:
        return Unscored(f"no reward key: reward {name} returned parts {_short(dict(parts))}; --reward-key chooses one")
    if key not in parts:
        return Unscored(f"no part {key}: reward {name} returned parts {', '.join(map(str, parts)) or '(none)'}")
    return _number(parts[key], parts, name)


def _number(value: Any, parts: Mapping[Any, Any], name: str) -> Verdict:
    strange = [part for part, x in parts.items() if not isinstance(x, Real)]
    if not isinstance(value, Real):
        return Unscored(f"not a number: reward {name} returned {_short(value)}")
    if not math.isfinite(value):
        return Unscored(f"not finite: reward {name} returned {float(value)}")
    if strange:
        return Unscored(f"not a number: reward {name} returned part {strange[0]!r} = {_short(parts[strange[0]])}")
    return Score(float(value), {str(part): float(x) for part, x in parts.items()})


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}{'...' if len(text) > 60 else ''}"
