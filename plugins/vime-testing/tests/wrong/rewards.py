"""Rewards that are wrong, each in one way."""

from __future__ import annotations

import itertools
import random

from vime_testing import Example, RewardSuite

SUMS = (Example(right="4", label="4", wrong=["5"]),)
_count = itertools.count()


def right(sample):
    return float(sample.response.strip() == sample.label)


def upside_down(sample):
    return 1.0 - right(sample)


def raises_on_odd(sample):
    return float(int(sample.response) == int(sample.label))


def not_finite(sample):
    return right(sample) if sample.response == "4" else float("-inf")


def counts_calls(sample):
    return right(sample) + next(_count) / 1e6


def dice(sample):
    return right(sample) + random.random() / 2


def writes(sample):
    sample.response = sample.response.strip()
    sample.metadata["seen"] = True
    return right(sample)


class TestRight(RewardSuite):
    target = staticmethod(right)
    examples = SUMS


class TestUpsideDown(RewardSuite):
    target = staticmethod(upside_down)
    examples = SUMS


class TestRaisesOnOdd(RewardSuite):
    target = staticmethod(raises_on_odd)
    examples = SUMS


class TestNotFinite(RewardSuite):
    target = staticmethod(not_finite)
    examples = SUMS


class TestCountsCalls(RewardSuite):
    target = staticmethod(counts_calls)
    examples = SUMS
    deterministic = False


class TestDice(RewardSuite):
    target = staticmethod(dice)
    examples = SUMS


class TestWrites(RewardSuite):
    target = staticmethod(writes)
    examples = SUMS


class TestNothingSet(RewardSuite):
    examples = SUMS


class TestChanged(RewardSuite):
    target = staticmethod(right)
    examples = SUMS

    def test_scores_are_finite_numbers(self) -> None:
        """Not looked at."""
