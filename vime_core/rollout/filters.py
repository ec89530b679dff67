"""Filters: a scored group is kept or dropped, with a reason that is counted (dynamic sampling of DAPO, arXiv
2503.14476, section 3.2). A filter is a function ``(group) -> (keep, reason)``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vime_core.api import Group, Sample, Score

#: below this standard deviation the rewards of a group are equal, whatever float noise they carry
TOLERANCE = 1e-6


def check_reward_nonzero_std(group: Group) -> tuple[bool, str]:
    """Keep the group if its rewards differ; else nothing can be learned by comparing them."""
    values = reward_values(group.samples)
    if spread(values) > TOLERANCE:
        return True, ""
    return False, f"zero_std_{round(values[0], 1)}" if values else "no_reward"


def reward_values(samples: Sequence[Sample]) -> list[float]:
    """Values of those samples that have a score."""
    return [sample.reward.value for sample in samples if isinstance(sample.reward, Score)]


def spread(values: Sequence[float]) -> float:
    """Population standard deviation in float64, 0 for fewer than two values; exactly 0 for equal ones."""
    if len(values) < 2 or min(values) == max(values):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
