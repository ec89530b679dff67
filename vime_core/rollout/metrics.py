"""Metrics of samples, under vime's names. A figure that cannot be computed is left out; none is made up."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from statistics import median

from vime_core.api import Group, Sample, Score, Status, Unscored, equal_rewards
from vime_core.data import GroupOutcome
from vime_core.rollout.driver import Collected
from vime_core.rollout.filters import reward_values

#: a text is repetitive when its tail compresses by more than this factor
_RATIO, _TAIL, _SHORTEST = 10.0, 10_000, 200


def step_metrics(collected: Collected) -> dict[str, float]:
    """Of one rollout step: over the samples trained on, and counts of what became of the other groups."""
    samples = [sample for group in collected.groups for sample in group.samples]
    counts = {"surplus": collected.surplus, "aborted": collected.aborted, "retried": collected.retried}
    return (
        length_metrics(samples, "rollout")
        | truncated_ratio(samples, "rollout/truncated_ratio")
        | _mean([float(is_repetitive(sample.response)) for sample in samples], "rollout/repetition_frac")
        | _rewards(samples)
        | _staleness(samples)
        | _zero_std(collected.groups)
        | _drops(collected)
        | {f"rollout/requeued/{name}": float(n) for name, n in counts.items()}
    )


def length_metrics(samples: Sequence[Sample], prefix: str) -> dict[str, float]:
    lengths = [len(sample.response_tokens) for sample in samples]
    if not lengths:
        return {}
    figures = {
        "mean": sum(lengths) / len(lengths),
        "median": median(lengths),
        "max": max(lengths),
        "min": min(lengths),
    }
    return {f"{prefix}/response_len/{name}": float(value) for name, value in figures.items()}


def truncated_ratio(samples: Sequence[Sample], name: str) -> dict[str, float]:
    return _mean([float(sample.status is Status.TRUNCATED) for sample in samples], name)


def is_repetitive(text: str) -> bool:
    """Whether the end of a response runs in circles (as vime tells it: its last 10,000 characters compress tenfold)."""
    if len(text) < _SHORTEST:
        return False
    tail = text[-_TAIL:].encode(errors="replace")
    return len(tail) > _RATIO * len(zlib.compress(tail, 6))


def _rewards(samples: Sequence[Sample]) -> dict[str, float]:
    scores = [sample.reward for sample in samples if isinstance(sample.reward, Score)]
    parts: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.parts.items():
            if isfinite(value):
                parts.setdefault(name.replace("/", "_"), []).append(value)
    figures = _mean([score.value for score in scores], "rollout/raw_reward")
    unscored = sum(isinstance(sample.reward, Unscored) for sample in samples)
    figures |= {"rollout/unscored_samples": float(unscored)} if scores or unscored else {}
    for name, values in parts.items():
        figures |= _mean(values, f"rollout/reward_parts/{name}")
    return figures


def _staleness(samples: Sequence[Sample]) -> dict[str, float]:
    """Newest version of the step - oldest version of the sample; samples without sampled tokens have none."""
    oldest, newest = [], -1
    for sample in samples:
        seen = {version for version in set(sample.versions) if version >= 0}
        if seen:
            oldest.append(min(seen))
            newest = max(newest, max(seen))
    if not oldest:
        return {}
    ages = [float(newest - version) for version in oldest]
    return {"rollout/staleness/mean": sum(ages) / len(ages), "rollout/staleness/max": max(ages)}


def _zero_std(groups: Sequence[Group]) -> dict[str, float]:
    counts: Counter[float] = Counter()
    for group in groups:
        values = reward_values(group.samples)
        if len(values) > 1 and equal_rewards(min(values), max(values)):
            counts[round(values[0], 1) + 0.0] += 1
    return {f"rollout/zero_std/count_{value:g}": float(n) for value, n in counts.items()}


def _drops(collected: Collected) -> dict[str, float]:
    reasons = collected.reasons(GroupOutcome.FILTERED)
    return {f"rollout/dynamic_filter/drop_{reason.replace('/', '_')}": float(n) for reason, n in reasons.items()}


def _mean(values: Sequence[float], name: str) -> dict[str, float]:
    return {name: sum(values) / len(values)} if values else {}
