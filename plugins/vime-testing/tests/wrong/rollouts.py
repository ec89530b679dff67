"""Rollouts that are wrong, each in one way; the right one is the core's."""

from __future__ import annotations

import dataclasses

from vime_testing import RolloutSuite

from vime_core.api.errors import EngineError
from vime_core.api.sample import Status
from vime_core.rollout.generate import Generate


class LosesOne(Generate):
    async def generate(self, samples, client, params):
        return (await super().generate(samples, client, params))[1:]


class TokenizesAgain(Generate):
    async def generate(self, samples, client, params):
        done = await super().generate(samples, client, params)
        for sample in done:
            sample.response_tokens[:] = [*sample.response_tokens[1:], sample.response_tokens[0]]
        return done


class ForgetsTheVersion(Generate):
    async def generate(self, samples, client, params):
        done = await super().generate(samples, client, params)
        for sample in done:
            sample.versions[:] = [0] * len(sample.versions)
        return done


class AsksForMore(Generate):
    async def generate(self, samples, client, params):
        return await super().generate(samples, client, dataclasses.replace(params, max_tokens=100))


class AsksGreedily(Generate):
    async def generate(self, samples, client, params):
        return await super().generate(samples, client, dataclasses.replace(params, temperature=0.0))


class RepeatsIds(Generate):
    def _request(self, samples, params):
        request = super()._request(samples, params)
        return dataclasses.replace(request, ids=tuple(f"r{i}" for i in range(len(request.ids))))


class HidesTheAbort(Generate):
    async def generate(self, samples, client, params):
        done = await super().generate(samples, client, params)
        for sample in done:
            sample.status = Status.COMPLETED
        return done


class GoesOn(Generate):
    async def generate(self, samples, client, params):
        kept = [(list(s.response_tokens), list(s.logprobs), list(s.versions)) for s in samples]
        done = await super().generate(samples, client, params)
        for sample, (tokens, logprobs, versions) in zip(done, kept):
            sample.append_model(tokens, logprobs, versions)
        return done


class HidesTheError(Generate):
    async def generate(self, samples, client, params):
        try:
            return await super().generate(samples, client, params)
        except EngineError:
            for sample in samples:
                sample.append_model([1], [-1.0], [1])
                sample.status = Status.COMPLETED
            return list(samples)


class TestRight(RolloutSuite):
    target = Generate


class TestLosesOne(RolloutSuite):
    target = LosesOne


class TestTokenizesAgain(RolloutSuite):
    target = TokenizesAgain


class TestForgetsTheVersion(RolloutSuite):
    target = ForgetsTheVersion


class TestAsksForMore(RolloutSuite):
    target = AsksForMore


class TestAsksGreedily(RolloutSuite):
    target = AsksGreedily


class TestRepeatsIds(RolloutSuite):
    target = RepeatsIds


class TestHidesTheAbort(RolloutSuite):
    target = HidesTheAbort


class TestGoesOn(RolloutSuite):
    target = GoesOn


class TestHidesTheError(RolloutSuite):
    target = HidesTheError
