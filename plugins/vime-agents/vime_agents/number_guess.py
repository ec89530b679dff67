"""Find a hidden number: the smallest environment with several turns, whose best play (halving) is known."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from vime_core.api import Environment, Observation

_INTEGER = re.compile(r"-?\d+")


class NumberGuess(Environment):
    """One game. The sample's metadata holds ``target`` and may hold ``low`` (1), ``high`` (100) and ``guesses``
    (default: what halving needs in the worst case).

    The last integer of an action is the guess; an action without one costs a guess too. ``info`` of every observation
    has ``solved`` and ``guesses``, the number used.
    """

    def __init__(self) -> None:
        self._target = self._low = self._high = self._allowed = self._used = 0
        self._over = True

    async def reset(self, metadata: Mapping[str, Any]) -> Observation:
        """Start a game.

        Raises:
            ValueError: the metadata has no integer ``target`` within ``low`` and ``high``.
        """
        target, low, high = metadata.get("target"), metadata.get("low", 1), metadata.get("high", 100)
        if not (isinstance(target, int) and low <= target <= high):
            raise ValueError(f"number_guess: metadata target={target!r} is not an integer in [{low}, {high}]")
        self._target, self._low, self._high = target, low, high
        self._allowed = metadata.get("guesses", math.floor(math.log2(high - low + 1)) + 1)
        self._used, self._over = 0, False
        return self._say(f"I think of a number from {low} to {high}. You have {self._allowed} guesses.")

    async def step(self, action: str) -> Observation:
        if self._over:
            raise ValueError("number_guess: the game is over; call reset")
        self._used += 1
        numbers = _INTEGER.findall(action)
        guess = int(numbers[-1]) if numbers else None
        if guess == self._target:
            return self._end("Correct.", solved=True)
        if self._used >= self._allowed:
            return self._end(f"No guesses left. It was {self._target}.", solved=False)
        return self._say(self._hint(guess))

    def _hint(self, guess: int | None) -> str:
        if guess is None:
            return f"Say a number from {self._low} to {self._high}."
        return "Higher." if guess < self._target else "Lower."

    def _say(self, text: str) -> Observation:
        return Observation(text, info={"solved": False, "guesses": self._used})

    def _end(self, text: str, solved: bool) -> Observation:
        self._over = True
        return Observation(text, done=True, info={"solved": solved, "guesses": self._used})
