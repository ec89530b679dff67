"""Environments that are wrong, each in one way. The right one: say "b", then "a"."""

from __future__ import annotations

import random
from typing import ClassVar

from vime_testing import EnvironmentSuite

from vime_core import Environment
from vime_core.api.environment import Observation


class Right(Environment):
    def __init__(self):
        self.left = ["b", "a"]

    async def reset(self, metadata):
        self.left = list(metadata["word"][::-1])
        return Observation("spell it backwards")

    async def step(self, action):
        if self.left and action.strip() == self.left[0]:
            self.left.pop(0)
        return Observation("go on" if self.left else "done", done=not self.left)


class Silent(Right):
    async def reset(self, metadata):
        await super().reset(metadata)
        return Observation("")


class Endless(Right):
    async def step(self, action):
        await super().step(action)
        return Observation("go on")


class Fragile(Right):
    async def step(self, action):
        assert action in ("a", "b"), "what?"
        return await super().step(action)


class Dice(Right):
    async def step(self, action):
        seen = await super().step(action)
        return Observation(f"{seen.text} {random.random()}", done=seen.done)


class Shared(Right):
    state: ClassVar[list[str]] = []

    def __init__(self):
        pass

    @property
    def left(self):
        return Shared.state

    @left.setter
    def left(self, value):
        Shared.state[:] = value


class Remembers(Right):
    def __init__(self):
        super().__init__()
        self.resets = 0

    async def reset(self, metadata):
        self.resets += 1
        await super().reset(metadata)
        return Observation(f"try {self.resets}")


class NotPlain(Right):
    async def step(self, action):
        seen = await super().step(action)
        return Observation(seen.text, done=seen.done, info={"where": object})


class ClosesOnce(Right):
    open = True

    async def close(self):
        assert self.open, "closed already"
        self.open = False


class Suite(EnvironmentSuite):
    metadata: ClassVar = {"word": "ab"}
    actions = ("b", "a")


class TestRight(Suite):
    target = Right


class TestSilent(Suite):
    target = Silent


class TestEndless(Suite):
    target = Endless


class TestFragile(Suite):
    target = Fragile


class TestDice(Suite):
    target = Dice


class TestShared(Suite):
    target = Shared


class TestRemembers(Suite):
    target = Remembers


class TestNotPlain(Suite):
    target = NotPlain


class TestClosesOnce(Suite):
    target = ClosesOnce
