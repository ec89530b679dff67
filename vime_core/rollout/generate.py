"""The plain rollout: one prompt, one response. One request for the whole group, token in and token out."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vime_core.api import (
    EngineError,
    GenerateReply,
    GenerateRequest,
    GenerationClient,
    RolloutGenerator,
    Sample,
    SamplingParams,
    Status,
)
from vime_core.config import Config
from vime_core.data import LengthLimits, Tokenizer

_STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


@dataclass(frozen=True)
class RolloutContext:
    """What a generator may know when it is made: a class that is registered as a rollout is called with this one object
    (or with nothing, where its constructor takes nothing)."""

    config: Config
    tokenizer: Tokenizer
    limits: LengthLimits


class Generate(RolloutGenerator):
    """Registered as "generate"."""

    def __init__(self, context: RolloutContext) -> None:
        self._tokenizer = context.tokenizer
        self._limits = context.limits
        data = context.config.data
        self._seed = data.rollout_seed if context.config.rollout.rollout_seeded else None
        self._process = os.urandom(4).hex()
        self._calls = itertools.count()

    async def generate(
        self, samples: Sequence[Sample], client: GenerationClient, params: SamplingParams
    ) -> list[Sample]:
        """Raises:
        EngineError: replies that are not the ones asked for, or end in a way that is not known.
        """
        for sample in samples:
            sample.reset()
        request = self._request(samples, params)
        replies = await client.generate(request)
        if [reply.id for reply in replies] != list(request.ids):
            raise EngineError(f"asked for {list(request.ids)}, got replies to {[reply.id for reply in replies]}")
        texts = self._tokenizer.batch_decode(
            [reply.tokens for reply in replies], skip_special_tokens=params.skip_special_tokens
        )
        for sample, reply, text in zip(samples, replies, texts):
            _receive(sample, reply, text)
        return list(samples)

    def _request(self, samples: Sequence[Sample], params: SamplingParams) -> GenerateRequest:
        prompt = samples[0].prompt_tokens
        call = next(self._calls)
        return GenerateRequest(
            ids=tuple(f"{self._process}-{call}-{sample.rollout}" for sample in samples),
            tokens=prompt,
            params=replace(params, max_tokens=self._limits.budget(len(prompt), params.max_tokens)),
            session=f"{self._process}-{call}",
            seeds=() if self._seed is None else tuple(sample_seed(self._seed, sample.rollout) for sample in samples),
        )


def _receive(sample: Sample, reply: GenerateReply, text: str) -> None:
    status = _STATUS.get(reply.finish)
    if status is None:
        raise EngineError(f"{sample.name}: the engine ended it as {reply.finish!r}; known are {', '.join(_STATUS)}")
    try:
        sample.append_model(reply.tokens, reply.logprobs, reply.versions, reply.streams)
    except ValueError as error:
        raise EngineError(f"the engine's reply cannot be used: {error}") from error
    sample.response, sample.status = text, status


def sample_seed(rollout_seed: int, rollout: int) -> int:
    """31 bits that depend on nothing but the run's seed and the id of the rollout."""
    return int.from_bytes(hashlib.blake2b(f"{rollout_seed}/{rollout}".encode(), digest_size=4).digest()) >> 1
