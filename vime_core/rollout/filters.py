"""Filters: a scored group is kept or dropped, with a reason that is counted (dynamic sampling of DAPO, arXiv
2503.14476, section 3.2). A filter is a function ``(group) -> (keep, reason)``."""

from __future__ import annotations

from collections.abc import Sequence

from vime_core.api import Group, Sample, Score, equal_rewards


def check_reward_nonzero_std(group: Group) -> tuple[bool, str]:
    """Keep the group if its rewards differ; else nothing can be learned by comparing them."""
    values = reward_values(group.samples)
    if values and not equal_rewards(min(values), max(values)):
        return True, ""
    return False, f"zero_std_{round(values[0], 1)}" if values else "no_reward"


def reward_values(samples: Sequence[Sample]) -> list[float]:
    """Values of those samples that have a score."""
    return [sample.reward.value for sample in samples if isinstance(sample.reward, Score)]
