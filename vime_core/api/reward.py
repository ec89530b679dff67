"""Rewards: one value a sample, or a reason why there is none."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from vime_core.api.sample import Sample


#: rewards whose range is this share of their size differ by rounding only: eight last places of float32
ROUNDING = 2.0**-20


def equal_rewards(low: float, high: float) -> bool:
    """Whether all of a group's rewards, from ``low`` to ``high``, are one value up to rounding relative to its size."""
    return high - low <= ROUNDING * max(abs(low), abs(high))


@dataclass(frozen=True)
class Score:
    """A reward. ``value`` must be finite; ``parts`` are logged by name."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Unscored:
    """The sample could not be judged. It is counted and never trained on as a zero: for the others of its group it is
    not there, and a group without any score is dropped."""

    reason: str


Verdict = Score | Unscored


class Reward(Protocol):
    """``score(sample) -> float | Score | Unscored``, sync or async. A plain function is enough."""

    def __call__(self, sample: Sample) -> float | Verdict | Awaitable[float | Verdict]: ...


@runtime_checkable
class GroupReward(Protocol):
    """Declares that it judges a whole group at once (never guessed from context)."""

    def score_group(
        self, samples: Sequence[Sample]
    ) -> Sequence[float | Verdict] | Awaitable[Sequence[float | Verdict]]: ...
