"""Algorithms that are wrong, each in one way."""

from __future__ import annotations

from typing import ClassVar

import torch
from vime_testing import AlgorithmSuite

from vime_core import Algorithm


class Right(Algorithm):
    """The reward less its mean over the step, and a policy gradient."""

    name = "right"
    needs = frozenset({"old_logp", "reward"})
    defaults: ClassVar = {"scale": 1.0}

    def advantages(self, batch, options):
        reward = batch.t("reward").float()
        return (options["scale"] * (reward - 0.1))[batch.seg()]

    def surrogate(self, view, advantage, options):
        return -(view.logp - view.old_logp).exp() * advantage, {}


class DependsOnOrder(Right):
    def advantages(self, batch, options):
        return super().advantages(batch, options) * torch.linspace(0.5, 1.0, batch.response_tokens)


class DependsOnTheMicroBatch(Right):
    def surrogate(self, view, advantage, options):
        loss, metrics = super().surrogate(view, advantage, options)
        return loss - loss.detach().mean(), metrics


class DividesByZero(Right):
    def advantages(self, batch, options):
        reward = batch.t("reward").float()
        known = reward[reward.isfinite()]
        return ((reward - known.mean()) / known.std(unbiased=False))[batch.seg()]


class IgnoresAdvantage(Right):
    def surrogate(self, view, advantage, options):
        return -view.logp, {}


class Detaches(Right):
    def surrogate(self, view, advantage, options):
        loss, metrics = super().surrogate(view, advantage, options)
        return loss * (1 + view.logp.detach()), metrics


class RefusesItself(Right):
    def violations(self, options):
        return ["scale is 1.0; give something else"] if options["scale"] == 1.0 else []


class Suite(AlgorithmSuite):
    arguments: ClassVar = {"aggregations": ("rollout_mean",), "seeds": (0,)}


class TestRight(Suite):
    target = Right


class TestDependsOnOrder(Suite):
    target = DependsOnOrder


class TestDependsOnTheMicroBatch(Suite):
    target = DependsOnTheMicroBatch


class TestDividesByZero(Suite):
    target = DividesByZero


class TestIgnoresAdvantage(Suite):
    target = IgnoresAdvantage


class TestDetaches(Suite):
    target = Detaches
    detaches = False


class TestDetachesAndSaysNothing(Suite):
    target = Detaches


class TestDetachesAndSaysSo(Suite):
    target = Detaches
    detaches = True


class TestRefusesItself(Suite):
    target = RefusesItself


class TestUnknownOption(Suite):
    target = Right
    options: ClassVar = {"size": 2}
