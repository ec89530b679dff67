"""What a rollout must return: the samples it was given, with streams that agree and tokens that were really sampled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.api import EngineError, Group, RolloutGenerator, Sample, SamplingParams, Status
from vime_testing.suite import Suite, must, skip

if TYPE_CHECKING:
    from vime_core.config import Config
    from vime_testing.client import Script, ScriptedClient

_CONTEXT = 4096


class RolloutSuite(Suite):
    """The generator runs against a scripted engine and a tokenizer of bytes.

    Attributes:
        prompt, label, metadata: of the samples it gets.
        script: what the engine says (a text, or a function of request, number of the call and index).
        rollouts: samples a group.
        max_tokens: how long a response may be, in tokens.
    """

    kind = "rollouts"
    prompt: ClassVar[Any] = "12+34="
    label: ClassVar[Any] = "46"
    metadata: ClassVar[Mapping[str, Any]] = {}
    script: ClassVar[Script | str] = "46"
    rollouts: ClassVar[int] = 3
    max_tokens: ClassVar[int] = 64
    deadline: ClassVar[float] = 60.0

    def config(self) -> Config:
        """The run's configuration, as the generator sees it."""
        from vime_core.config import Config

        return Config().replace("rollout", rollout_max_response_len=self.max_tokens)

    def make(self) -> RolloutGenerator:
        """A new generator, made as a run makes it."""
        from vime_core.data import LengthLimits
        from vime_core.rollout import RolloutContext, make_generator

        context = RolloutContext(self.config(), self._tokenizer(), LengthLimits(context=_CONTEXT))
        return make_generator(self.resolve(), context)

    # the tests -----------------------------------------------------------------------------------------------
    def test_the_samples_come_back_whole(self) -> None:
        group = self._group()
        self._well(group, self._generate(group))

    def test_tokens_are_those_that_were_sampled(self) -> None:
        client = self._client()
        for sample in self._generate(self._group(), client):
            for place, (token, mask, logp) in enumerate(zip(sample.response_tokens, sample.loss_mask, sample.logprobs)):
                if self._supervised() or not mask:
                    must(
                        math.isnan(logp),
                        f"response token {place} was not sampled but has log-prob {logp}; add it with "
                        "append_observation or append_target",
                    )
                    continue
                must(
                    client.said.get(logp) == token,
                    f"response token {place} is {token} with log-prob {logp}, which was sampled with token "
                    f"{client.said.get(logp)}; pass ids and log-probs on as they came and never tokenize text again",
                )

    def test_samples_carry_the_weight_version(self) -> None:
        client = self._client()
        for sample in self._generate(self._group(), client):
            wanted = [client.version if m and not self._supervised() else -1 for m in sample.loss_mask]
            must(
                sample.versions == wanted,
                f"versions are {sample.versions}, the engine sampled with {wanted}; hand the reply's versions to "
                "append_model",
            )

    def test_no_response_is_longer_than_allowed(self) -> None:
        if self._supervised():
            skip("supervised: the data says how long a response is")
        for allowed in (1, 2, 5):
            client = self._client("x" * 40)
            samples = self._generate(self._group(), client, max_tokens=allowed)
            asked = max((request.params.max_tokens for request in client.requests), default=0)
            must(asked <= allowed, f"the engine was asked for {asked} tokens, max_tokens is {allowed}; pass it on")
            longest = max(sample.trainable_tokens for sample in samples)
            must(
                longest <= allowed,
                f"a response has {longest} sampled tokens, max_tokens is {allowed}; count over all turns",
            )

    def test_sampling_parameters_are_passed_on(self) -> None:
        if self._supervised():
            skip("supervised: nothing is sampled")
        client = self._client()
        wanted = {"temperature": 0.3, "top_p": 0.7, "top_k": 11, "stop": ("END",)}
        self._generate(self._group(), client, **wanted)
        for request in client.requests:
            got = {name: getattr(request.params, name) for name in wanted}
            must(got == wanted, f"the engine was asked with {got}, the run wants {wanted}; use replace(params, ...)")

    def test_request_ids_are_unique(self) -> None:
        if self._supervised():
            skip("supervised: nothing is asked")
        client, generator = self._client(), self.make()
        for number in range(3):
            self._run_group(generator, self._group(number), client)
        ids = [id for request in client.requests for id in request.ids]
        must(ids, "the generator asked the engine nothing")
        must(len(set(ids)) == len(ids), f"request ids repeat: {sorted(ids)[:4]}; make them unique in the run")

    def test_an_aborted_response_is_marked_and_kept(self) -> None:
        if self._supervised():
            skip("supervised: nothing is sampled")
        client = self._client("x" * 20, stop_after=2)
        for sample in self._generate(self._group(), client):
            must(
                sample.status is Status.ABORTED,
                f"the engine aborted, the sample is {sample.status.value}; set Status.ABORTED, or it is trained as if "
                "it were finished",
            )
            must(
                sample.trainable_tokens == 2,
                f"2 tokens were sampled before the abort, the sample has {sample.trainable_tokens}; keep what is there",
            )

    def test_a_second_try_starts_afresh(self) -> None:
        group, generator = self._group(), self.make()
        first = [list(s.response_tokens) for s in self._run_group(generator, group, self._client())]
        second = [list(s.response_tokens) for s in self._run_group(generator, group, self._client())]
        must(
            first == second,
            f"generated again the responses have {[len(t) for t in second]} tokens, at first "
            f"{[len(t) for t in first]}; call sample.reset() before anything is appended",
        )

    def test_groups_at_once_do_not_mix(self) -> None:
        generator, client = self.make(), self._client()
        groups = [self._group(number) for number in range(4)]

        async def all_of_them() -> list[list[Sample]]:
            params = self._params()
            return await asyncio.gather(*(generator.generate(g.samples, client, params) for g in groups))

        for group, samples in zip(groups, asyncio.run(asyncio.wait_for(all_of_them(), self.deadline))):
            self._well(group, samples)

    def test_an_engine_error_is_not_hidden(self) -> None:
        if self._supervised():
            skip("supervised: nothing is asked")
        try:
            samples = self._generate(self._group(), self._client(lambda *_: EngineError("engine 0 is gone")))
        except EngineError:
            return
        wrong = [s.status.value for s in samples if s.status is not Status.FAILED]
        must(
            not wrong,
            f"the engine failed and the samples are {wrong}; let EngineError pass, or set Status.FAILED with an error",
        )

    # how it is run -------------------------------------------------------------------------------------------
    def _supervised(self) -> bool:
        return bool(self.resolve().supervised)

    def _tokenizer(self) -> Any:
        return _tokenizer()

    def _client(self, script: Script | str | None = None, stop_after: int | None = None) -> ScriptedClient:
        from vime_testing.client import ScriptedClient

        said = self.given("script") if script is None else script
        return ScriptedClient(self._tokenizer(), said, stop_after=stop_after)

    def _group(self, number: int = 0) -> Group:
        from vime_testing.samples import make_sample

        samples = [
            make_sample(self.prompt, label=self.label, metadata=self.metadata, rollout=1000 * number + index)
            for index in range(self.rollouts)
        ]
        for sample in samples:
            sample.prompt_tokens = list(self._tokenizer()(str(self.prompt), add_special_tokens=False)["input_ids"])
        return Group(number, samples)

    def _params(self, **changes: Any) -> SamplingParams:
        return SamplingParams(**{"max_tokens": self.max_tokens, **changes})

    def _generate(self, group: Group, client: ScriptedClient | None = None, **params: Any) -> list[Sample]:
        return self._run_group(self.make(), group, client or self._client(), **params)

    def _run_group(self, generator: RolloutGenerator, group: Group, client: Any, **params: Any) -> list[Sample]:
        work = generator.generate(group.samples, client, self._params(**params))
        return asyncio.run(asyncio.wait_for(work, self.deadline))

    def _well(self, group: Group, samples: Sequence[Sample]) -> None:
        from vime_core.rollout import group_violation

        wrong = group_violation(group, samples, self.make())
        must(not wrong, wrong)
        for sample in samples:
            must(sample.response_tokens, f"{sample.name} came back without a response")
            must(sum(sample.loss_mask), f"{sample.name} has no token to train on")


@cache
def _tokenizer() -> Any:
    """Made once a process: it takes longer than any of the checks."""
    from vime_testing.tokenizer import byte_tokenizer

    return byte_tokenizer()
