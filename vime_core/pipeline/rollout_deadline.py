"""How long the driver waits for a rollout: by the speed of former steps, and by lengths alone before the first.

The rollout worker has its own, named deadlines; these catch one that is gone without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.data import GenerationBound

if TYPE_CHECKING:
    from vime_core.config import Config

#: times as long as the most that can be sampled takes at the slowest speed so far: the last sequences run alone
_MARGIN = 3.0
#: seconds that are allowed in any case
_LEAST = 600.0
#: times that the samples of a step are drawn: a group that failed is sampled again; a filter drops groups
_AGAIN, _FILTERED = 2, 4


@dataclass(frozen=True)
class WaitLimit:
    """``why`` is part of the message of who waited in vain."""

    seconds: float
    why: str


class RolloutDeadline:
    """Of one run."""

    def __init__(self, config: Config) -> None:
        self._config = config
        #: tokens a second of the slowest rollout so far, rewards included
        self.slowest: float | None = None

    def measured(self, tokens: float, seconds: float) -> None:
        """A rollout gave so many tokens."""
        if tokens > 0 and seconds > 0:
            speed = tokens / seconds
            self.slowest = speed if self.slowest is None else min(self.slowest, speed)

    def of_step(self) -> WaitLimit:
        rollout = self._config.rollout
        filtered = rollout.dynamic_sampling_filter_path is not None
        given = rollout.generate_timeout_secs
        if given is not None:
            rounds = 1 + rollout.max_filter_rounds
            return WaitLimit(given * rounds, f"--generate-timeout-secs {given:g} for each of {rounds} rounds")
        bound = GenerationBound.of(self._config)
        if self.slowest is None:
            return self._unmeasured(bound, _FILTERED if filtered else _AGAIN)
        return self._by_speed(bound, rollout.max_filter_rounds if filtered else _AGAIN)

    def of_evaluation(self, samples: int) -> WaitLimit:
        """Of an evaluation that draws so many samples."""
        given = self._config.rollout.generate_timeout_secs
        bound = GenerationBound.of(self._config, samples)
        if given is not None:
            waves = 1 + samples // bound.at_a_time
            return WaitLimit(given * waves, f"--generate-timeout-secs {given:g} for each of {waves} rounds")
        return self._unmeasured(bound, 1) if self.slowest is None else self._by_speed(bound, 1)

    def _unmeasured(self, bound: GenerationBound, rounds: int) -> WaitLimit:
        rollout = self._config.rollout
        rewards = bound.samples / rollout.reward_concurrency * rollout.reward_timeout_secs
        times = f"{rounds} times " if rounds > 1 else ""
        return WaitLimit(
            rounds * (bound.seconds + rewards),
            f"{times}{bound}, and {rewards:.0f} s for rewards; no speed was measured yet; --generate-timeout-secs sets "
            "another",
        )

    def _by_speed(self, bound: GenerationBound, rounds: int) -> WaitLimit:
        assert self.slowest is not None
        tokens = rounds * bound.samples * bound.length
        seconds = max(_LEAST, _MARGIN * tokens / self.slowest)
        return WaitLimit(
            seconds,
            f"{_MARGIN:g} times what {tokens} tokens take at {self.slowest:.4g} tokens/s, the slowest step so far, and "
            f"at least {_LEAST:.0f} s; --generate-timeout-secs sets another",
        )
