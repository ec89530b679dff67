from __future__ import annotations

import asyncio
import math

import pytest

from vime_core.api.errors import DataError, EngineError
from vime_core.api.rollout import GenerateReply, SamplingParams
from vime_core.api.sample import Sample, Status
from vime_core.data.limits import LengthLimits
from vime_core.rollout.generate import Generate, RolloutContext, sample_seed
from vime_core.rollout.sampling import eval_params, train_params
from vime_core.rollout.sft import SftRollout


@pytest.fixture
def context(config, tokenizer):
    def make(**rollout):
        made = config(**rollout)
        return RolloutContext(made, tokenizer, LengthLimits.of(made))

    return make


def samples(tokenizer, n=3, prompt="12+34="):
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return [Sample(0, 0, 10 + i, i, prompt, list(ids), label="46") for i in range(n)]


def run(generator, group, client, **params):
    return asyncio.run(generator.generate(group, client, SamplingParams(**({"max_tokens": 6} | params))))


def test_one_request_for_the_group_and_replies_in_order(context, tokenizer, client):
    engine = client(lambda request, call: ["46", "4", "123456"], version=7)
    done = run(Generate(context()), samples(tokenizer), engine)
    assert [s.response for s in done] == ["46", "4", "123456"]
    assert [s.status for s in done] == [Status.COMPLETED] * 3
    assert done[1].response_tokens == [*tokenizer("4")["input_ids"], tokenizer.eos_token_id]
    assert done[1].versions == [7, 7]
    (request,) = engine.calls
    assert len(request.ids) == len(set(request.ids)) == 3
    assert tokenizer.decode(request.tokens) == "12+34="
    assert request.seeds == ()


def test_request_ids_differ_from_call_to_call(context, tokenizer, client):
    engine, generator = client(), Generate(context())
    for _ in range(3):
        run(generator, samples(tokenizer), engine)
    ids = [id for request in engine.calls for id in request.ids]
    assert len(set(ids)) == 9


def test_budget_is_capped_by_the_context(context, tokenizer, client):
    engine = client()
    run(Generate(context(rollout_max_context_len=10)), samples(tokenizer), engine)
    run(Generate(context(rollout_max_context_len=100)), samples(tokenizer), engine)
    assert [request.params.max_tokens for request in engine.calls] == [4, 6]


def test_seeds_depend_on_run_seed_and_rollout_only(context, tokenizer, client):
    engine = client()
    for _ in range(2):
        run(Generate(context(rollout_seeded=True)), samples(tokenizer), engine)
    first, second = (request.seeds for request in engine.calls)
    assert first == second == tuple(sample_seed(42, 10 + i) for i in range(3))
    assert len(set(first)) == 3
    assert len({sample_seed(1, i) for i in range(10_000)}) > 9_990
    assert all(0 <= seed < 2**31 for seed in first)


def test_truncated_and_aborted(context, tokenizer, client):
    assert run(Generate(context()), samples(tokenizer), client(finish="length"))[0].status is Status.TRUNCATED
    aborted = samples(tokenizer)

    class Aborting:
        async def generate(self, request):
            return [GenerateReply(id, [], [], [], "abort") for id in request.ids]

    done = run(Generate(context()), aborted, Aborting())
    assert all(s.status is Status.ABORTED and s.response_tokens == [] for s in done)


def test_retry_of_a_used_sample_equals_a_fresh_one(context, tokenizer, client):
    used = samples(tokenizer)
    generator = Generate(context())
    run(generator, used, client("999"))
    again, fresh = run(generator, used, client("46")), run(generator, samples(tokenizer), client("46"))
    assert [(s.response, s.tokens, s.logprobs) for s in again] == [(s.response, s.tokens, s.logprobs) for s in fresh]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda id: GenerateReply(id, [5], [], [0], "stop"), "1 tokens, 0 log-probs"),
        (lambda id: GenerateReply(id, [5], [math.nan], [0], "stop"), "log-prob nan at response token 0"),
        (lambda id: GenerateReply(id, [5], [-1.0], [0], "error"), "the engine ended it as 'error'"),
        (lambda id: GenerateReply("other", [5], [-1.0], [0], "stop"), "got replies to"),
    ],
)
def test_replies_that_cannot_be_trusted_are_errors(context, tokenizer, reply, message):
    class Broken:
        async def generate(self, request):
            return [reply(id) for id in request.ids]

    with pytest.raises(EngineError, match=message):
        run(Generate(context()), samples(tokenizer), Broken())


def test_parameters_and_fallbacks(config):
    made = config(rollout_temperature=0.7, rollout_top_p=0.9, rollout_stop=["="], rollout_stop_token_ids=[3])
    train = train_params(made)
    assert (train.max_tokens, train.temperature, train.top_p, train.stop, train.stop_token_ids) == (
        6,
        0.7,
        0.9,
        ("=",),
        (3,),
    )
    assert eval_params(made) == train
    greedy = eval_params(made.replace("eval", eval_temperature=0.0, eval_max_response_len=3))
    assert (greedy.temperature, greedy.max_tokens, greedy.top_p) == (0.0, 3, 0.9)
    assert train_params(config(rollout_max_response_len=None)).max_tokens == 64


def test_sft_takes_the_label(context, tokenizer):
    done = run(SftRollout(context()), samples(tokenizer, n=1), None)
    assert tokenizer.decode(done[0].tokens) == "12+34=46<eos>"
    assert (done[0].loss_mask, done[0].versions) == ([1, 1, 1], [-1, -1, -1])
    assert all(math.isnan(x) for x in done[0].logprobs)
    unlabelled = samples(tokenizer, n=1)
    unlabelled[0].label = None
    with pytest.raises(DataError, match="--label-key"):
        run(SftRollout(context()), unlabelled, None)
