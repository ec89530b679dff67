"""Which values the options of the built-in algorithms may have. One name, one meaning, one range."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vime_core.algorithms.kl import KINDS

_FINITE = sys.float_info.max
_POSITIVE = (sys.float_info.min, _FINITE, "a number above 0")
_FROM_0_TO_1 = (0.0, 1.0, "a number from 0 to 1")
_AT_LEAST_0 = (0.0, _FINITE, "a number of at least 0")

#: option -> (least, most, what to give)
RANGES: Mapping[str, tuple[float, float, str]] = MappingProxyType(
    {
        "eps_clip": _FROM_0_TO_1,
        "eps_clip_high": (0.0, math.inf, "a number of at least 0"),
        "eps_clip_c": (math.nextafter(1.0, 2.0), math.inf, "a number above 1"),
        "kl_coef": _AT_LEAST_0,
        "gamma": _FROM_0_TO_1,
        "lambd": _FROM_0_TO_1,
        "value_clip": _POSITIVE,
        "tau_pos": _POSITIVE,
        "tau_neg": _POSITIVE,
        "teacher_coef": _POSITIVE,
    }
)
#: option -> the values it may have
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType({"kl_estimator": KINDS})


def out_of_range(options: Mapping[str, Any]) -> list[str]:
    """What is wrong, one line an option. None stands for "not given" and is fine; unknown names are not looked at."""
    wrong = [
        f"{name} is {options[name]!r}; give {want}"
        for name, (least, most, want) in RANGES.items()
        if options.get(name) is not None and not _within(options[name], least, most)
    ]
    return wrong + [
        f"{name} is {options[name]!r}; give one of {', '.join(known)}"
        for name, known in CHOICES.items()
        if name in options and options[name] not in known
    ]


def _within(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
