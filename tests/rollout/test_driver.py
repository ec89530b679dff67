from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import json
import logging
import math
import re
import sys
import threading

import numpy as np
import pytest

from vime_core.api.errors import EngineError, PluginError, RewardError
from vime_core.api.reward import Unscored
from vime_core.api.rollout import GenerateRequest, RolloutGenerator
from vime_core.api.sample import Sample, Status
from vime_core.config.sections import RolloutSection
from vime_core.data import generation_deadline
from vime_core.data.buffer import DataBuffer
from vime_core.data.dataset import PromptDataset
from vime_core.data.ledger import GroupOutcome, Ledger
from vime_core.data.limits import LengthLimits
from vime_core.rollout.driver import Bounds, RolloutDriver
from vime_core.rollout.filters import GroupFilter, check_reward_nonzero_std
from vime_core.rollout.generate import Generate, RolloutContext
from vime_core.rollout.group_runner import Gate, GroupRunner
from vime_core.rollout.metrics import step_metrics
from vime_core.rollout.sampling import train_params
from vime_core.rollout.scoring import Scorer


class Bench:
    """A driver with all its real parts on a scripted client."""

    def __init__(self, config, tokenizer, client, reward=lambda s: 1.0, keep=None, generator=None, stall=60.0, n=2):
        self.config, self.client, self.keep, self.stall = config, client, keep, stall
        self.tokenizer, self.reward = tokenizer, reward
        context = RolloutContext(config, tokenizer, LengthLimits.of(config))
        self.generator = generator or Generate(context)
        rollout = config.rollout
        self.dataset = PromptDataset.open(config, tokenizer)
        self.buffer = DataBuffer(self.dataset, 1, False, rollout.n_samples_per_prompt)
        self.ledger = Ledger()
        self.gate = Gate(client)
        scorer = Scorer(reward, "mine", RolloutSection(reward_timeout_secs=5.0, reward_concurrency=4))
        runner = GroupRunner(self.generator, self.gate, train_params(config), scorer, generation_deadline(config))
        base = Bounds.of(config)
        bounds = Bounds(base.in_flight, base.filter_rounds, base.failure_ratio, stall)
        own = None if keep is None else GroupFilter(keep)
        self.driver = RolloutDriver(self.buffer, self.ledger, runner, bounds, own)

    def collect(self, n=4, step=0):
        async def run():
            try:
                return await self.driver.collect(step, n)
            finally:
                assert len(asyncio.all_tasks()) == 1, "tasks are left running"
                assert self.client.running == self.gate.in_flight == 0

        return asyncio.run(run())


@pytest.fixture
def bench(config, tokenizer):
    def make(client, rows=8, reward=lambda s: 1.0, keep=None, generator=None, stall=60.0, **rollout):
        return Bench(config(rows, **rollout), tokenizer, client, reward, keep, generator, stall)

    return make


def prompt_of(bench, request: GenerateRequest) -> str:
    return bench.tokenizer.decode(request.tokens)


def test_exactly_the_groups_of_a_step_in_order(bench, client):
    made = bench(client("12"))
    for step in range(4):
        collected = made.collect(4, step)
        assert [g.id for g in collected.groups] == list(range(4 * step, 4 * step + 4))
    assert made.ledger.metrics()["rollout/groups/trained"] == 16
    assert len(made.client.calls) == 16
    assert made.client.aborts == 0


def test_a_dropped_group_makes_room_for_exactly_one(bench, client):
    dropped = []

    def keep(group):
        if group.id == 2:
            dropped.append(group.id)
            return False, "two"
        return True, ""

    made = bench(client("12"), keep=keep)
    collected = made.collect(4)
    assert [g.id for g in collected.groups] == [0, 1, 3, 4]
    assert (dropped, len(made.client.calls)) == ([2], 5)
    assert collected.reasons(GroupOutcome.FILTERED) == {"two": 1}
    assert made.client.most <= 4


def test_filter_may_answer_plainly(bench, client):
    collected = bench(client("12"), keep=lambda g: g.id % 2 == 0).collect(2)
    assert [g.id for g in collected.groups] == [0, 2]


def test_everything_filtered_ends_with_counts(bench, client):
    made = bench(client("12"), keep=check_reward_nonzero_std, max_filter_rounds=3)
    with pytest.raises(RewardError, match=r"1\d groups were sampled, 3 times the batch of 4, and 0 kept \(1\d filt"):
        made.collect(4)
    assert made.ledger.count(GroupOutcome.FILTERED) >= 12
    made.ledger.check()


def test_over_sampling_aborts_and_requeues_what_is_left(bench, client, tokenizer):
    engine = client(lambda request, call: 30.0 if call in (1, 4) else "12")
    made = bench(engine, over_sampling_batch_size=6)
    first = made.collect(4)
    assert [g.id for g in first.groups] == [0, 2, 3, 5]
    assert (first.aborted, first.surplus, engine.aborts) == (2, 0, 1)
    assert made.ledger.metrics()["rollout/groups/waiting"] == 2
    second = made.collect(4, 1)
    assert [g.id for g in second.groups][:2] == [1, 4]
    rollouts = [s.rollout for c in (first, second) for g in c.groups for s in g.samples]
    assert len(rollouts) == len(set(rollouts)) == 16


def test_finished_surplus_comes_first_in_the_next_step_and_is_not_generated_again(bench, client):
    made = bench(client("12"), over_sampling_batch_size=7)
    first = made.collect(4)
    assert first.surplus + first.aborted == 3
    before = len(made.client.calls)
    second = made.collect(4, 1)
    assert [g.id for g in second.groups] == [4, 5, 6, 7]
    again = {id.rsplit("-", 1)[1] for request in made.client.calls[before:] for id in request.ids}
    kept = {str(s.rollout) for g in second.groups[: first.surplus] for s in g.samples}
    assert first.surplus > 0
    assert not again & kept
    assert made.ledger.count(GroupOutcome.TRAINED) == 8


def test_count_in_is_count_out_over_many_steps(bench, client):
    engine = client(lambda r, call: 30.0 if call % 7 == 6 else ("12", EngineError("gone"))[call % 5 == 4])
    made = bench(engine, rows=16, over_sampling_batch_size=6, keep=lambda g: (g.id % 9 != 8, "nine"))
    trained = [g.id for step in range(12) for g in made.collect(4, step).groups]
    assert len(trained) == len(set(trained)) == 48
    figures = made.ledger.metrics()
    assert sum(figures.values()) == made.buffer.state_dict()["next"][1]
    state = made.buffer.state_dict()
    assert figures["rollout/groups/waiting"] == len(state["queue"])
    assert state["in_flight"] == []


def test_a_failing_group_is_tried_again_and_equals_a_fresh_one(bench, client):
    engine = client(lambda request, call: EngineError("connection reset") if call == 1 else "12")
    collected = bench(engine).collect(4)
    assert [g.id for g in collected.groups] == [0, 1, 2, 3]
    assert collected.retried == 1
    assert {len(s.response_tokens) for g in collected.groups for s in g.samples} == {3}
    assert len({id for request in engine.calls for id in request.ids}) == 10


def test_a_group_that_fails_twice_is_counted_and_replaced(bench, client):
    engine = client("12")
    made = bench(engine)
    engine.script = lambda request, call: EngineError("poison") if prompt_of(made, request) == "01+01=" else "12"
    collected = made.collect(4)
    assert [g.id for g in collected.groups] == [0, 2, 3, 4]
    (drop,) = collected.dropped
    assert (drop.outcome, drop.group.id) == (GroupOutcome.FAILED, 1)
    assert drop.reason.startswith("EngineError at ")
    assert drop.reason.endswith("poison")


def test_a_dead_engine_ends_the_step_with_its_reasons_and_loses_nothing(bench, client):
    made = bench(client(lambda request, call: EngineError("engine 0 is gone")))
    with pytest.raises(EngineError, match=r"step 0: 4 of 4 groups came to nothing \(4 failed.*engine 0 is gone"):
        made.collect(4)
    made.ledger.check()
    assert made.buffer.state_dict()["queue"] == []


def test_half_done_step_gives_back_what_it_had(bench, client):
    made = bench(client("12"), reward=lambda s: 1.0 if s.group == 0 else None)
    with pytest.raises(RewardError):
        made.collect(4)
    assert made.ledger.count(GroupOutcome.UNSCORED) >= 3
    assert made.buffer.state_dict()["queue"][0]["group"] == 0
    assert made.buffer.state_dict()["in_flight"] == []
    made.ledger.check()


def test_reward_that_always_raises_ends_the_run_at_once_with_reasons(bench, client):
    def reward(sample):
        raise KeyError("answer")

    made = bench(client("12"), reward=reward)
    with pytest.raises(
        RewardError, match=r"(\d) of \1 groups came to nothing \(0 failed, \1 unscored.*KeyError at .*'answer'"
    ):
        made.collect(4)
    assert len(made.client.calls) <= 8


def test_an_unscored_sample_is_not_there_and_its_siblings_are_trained_on(bench, client):
    made = bench(client("12"), reward=lambda s: Unscored("no verdict") if s.rollout == 3 else float(s.rollout))
    collected = made.collect(4)
    assert [g.id for g in collected.groups] == [0, 1, 2, 3]
    assert [isinstance(s.reward, Unscored) for s in collected.groups[1].samples].count(True) == 1
    assert step_metrics(collected)["rollout/unscored_samples"] == 1.0


def test_a_group_without_any_score_is_dropped(bench, client):
    made = bench(client("12"), reward=lambda s: Unscored("no verdict") if s.group == 1 else 1.0)
    collected = made.collect(4)
    assert [g.id for g in collected.groups] == [0, 2, 3, 4]
    assert collected.reasons(GroupOutcome.UNSCORED) == {"no verdict": 1}


def test_generation_past_its_deadline_fails_the_group_not_the_run(bench, client):
    engine = client(lambda request, call: 30.0 if call == 0 else "12")
    collected = bench(engine, generate_timeout_secs=0.2).collect(4)
    assert [g.id for g in collected.groups] == [1, 2, 3, 4]
    (reason,) = collected.reasons(GroupOutcome.FAILED)
    assert "generation of group 0 took more than 0.2 s (--generate-timeout-secs)" in reason


def test_stall_report_names_what_is_awaited(bench, client, caplog):
    engine = client(lambda request, call: 0.6 if call == 0 else "12")
    with caplog.at_level(logging.WARNING, "vime.rollout"):
        bench(engine, stall=0.2).collect(4)
    text = next(r.getMessage() for r in caplog.records if "no group finished" in r.getMessage())
    assert (
        "waiting for 1 groups in generation (1 requests at the engines); oldest: group 0 in generation for 0 s" in text
    )


def test_abort_at_a_dead_engine_is_survived(bench, client):
    engine = client(lambda request, call: 3.0 if call == 5 else "12", dead=True)
    made = bench(engine, over_sampling_batch_size=6)
    collected = made.collect(4)
    assert len(collected.groups) == 4
    assert made.ledger.metrics()["rollout/groups/in_flight"] == 0


def test_groups_aborted_by_others_are_handed_out_again(bench, client):
    class Pausing(Generate):
        aborted = 0

        async def generate(self, samples, client, params):
            done = await super().generate(samples, client, params)
            if samples[0].group == 1 and not self.aborted:
                self.aborted = 1
                done[0].status = Status.ABORTED
            return done

    made = bench(client("12"))
    made = bench(client("12"), generator=Pausing(RolloutContext(made.config, made.tokenizer, LengthLimits())))
    collected = made.collect(4)
    assert [g.id for g in collected.groups] == [0, 1, 2, 3]
    assert collected.aborted == 1


def test_cancelling_a_step_leaves_nothing_running_and_loses_nothing(bench, client):
    made = bench(client(lambda request, call: 30.0 if call > 1 else "12"))

    async def run():
        task = asyncio.create_task(made.driver.collect(0, 4))
        while len(made.client.calls) < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert sorted(e["group"] for e in made.buffer.state_dict()["queue"]) == [0, 1, 2, 3]
    made.ledger.check()


class Custom(RolloutGenerator):
    def __init__(self, act):
        self.act = act

    async def generate(self, samples, client, params):
        return self.act(list(samples))


class Waits(Custom):
    async def generate(self, samples, client, params):
        return await self.act(list(samples))


def finished(sample, **changes):
    made = Sample(sample.prompt_id, sample.group, sample.rollout, sample.index, sample.prompt, sample.prompt_tokens)
    made.append_model([5], [-1.0], [0])
    made.status = Status.COMPLETED
    for name, value in changes.items():
        setattr(made, name, value)
    return made


class FansOut(Custom):
    fans_out = True


def test_a_rollout_may_fan_out_into_samples_with_its_id(bench, client):
    made = bench(client(), generator=FansOut(lambda ss: [finished(s) for s in ss for _ in range(3)]))
    collected = made.collect(4)
    assert [len(g.samples) for g in collected.groups] == [6, 6, 6, 6]
    assert len({s.rollout for g in collected.groups for s in g.samples}) == 8


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda ss: [finished(s, rollout=0) for s in ss], "other rollouts: "),
        (lambda ss: [finished(s, group=99) for s in ss], "samples of other groups: "),
        (lambda ss: [finished(ss[0])], "other rollouts: "),
        (lambda ss: [], "other rollouts: "),
        (lambda ss: ss, "pending: "),
        (lambda ss: [finished(s, status=Status.FAILED, error="tool down") for s in ss], "failed: .*tool down"),
        (lambda ss: [finished(s, loss_mask=[1, 1]) for s in ss], "lengths: "),
        (lambda ss: 1 / 0, "ZeroDivisionError at .*test_driver.py"),
        (lambda ss: sys.exit(3), "SystemExit at .*test_driver.py"),
        (
            lambda ss: None,
            r"Custom\.generate returned NoneType: it must return the list of finished samples",
        ),
        (lambda ss: [1, 2], r"Custom\.generate returned a list of int: it must return"),
        (
            lambda ss: [finished(s) for s in ss for _ in range(2)],
            "asked for: 2 samples of .*fans_out = True",
        ),
        (lambda ss: [finished(s) for s in ss] + [finished(ss[0])], "more than was asked for: 2 samples of rollout"),
        (lambda ss: 2 * [finished(s) for s in ss], r"twice the same: .*Custom\.generate\)"),
        (lambda ss: [finished(s, logprobs=[math.nan]) for s in ss], "log-probs: .* has nan for response token 0"),
        (lambda ss: [finished(s, logprobs=[0.5]) for s in ss], "log-probs: .* has 0.5 for response token 0"),
        (lambda ss: [finished(s, response_tokens=[-5]) for s in ss], "tokens: .* has response_tokens from -5 to -5"),
        (lambda ss: [finished(s, response_tokens=[1.5]) for s in ss], "tokens: .* has response_tokens of float64"),
        (lambda ss: [finished(s, response_tokens=["a"]) for s in ss], "tokens: .* has response_tokens of <U1"),
        (lambda ss: [finished(s, prompt_tokens=[None]) for s in ss], "tokens: .* has prompt_tokens of object"),
        (lambda ss: [finished(s, loss_mask=[2]) for s in ss], "tokens: .* has loss_mask from 2 to 2"),
        (lambda ss: [finished(s, loss_mask=[0.5]) for s in ss], "tokens: .* has loss_mask of float64"),
    ],
)
def test_generators_that_break_the_contract_fail_their_groups(bench, client, act, reason):
    with pytest.raises(EngineError, match=reason):
        bench(client(), generator=Custom(act)).collect(4, step=1)


def test_log_probs_of_tokens_that_are_not_trained_on_may_be_missing(bench, client):
    made = bench(client(), generator=Custom(lambda ss: [finished(s, logprobs=[math.nan], loss_mask=[0]) for s in ss]))
    assert len(made.collect(4).groups) == 4


def test_a_generator_that_is_not_async_is_named(bench, client):
    class Plain(Custom):
        def generate(self, samples, client, params):
            return [finished(sample) for sample in samples]

    with pytest.raises(EngineError, match=r"Plain\.generate returned list .*: it must be 'async def'"):
        bench(client(), generator=Plain(None)).collect(4)


def test_a_filter_that_gives_no_verdict_is_named(bench, client):
    def forgot(group):
        len(group.samples)

    with pytest.raises(PluginError, match=r"filter .*forgot returned NoneType None: it must return True or False"):
        bench(client("12"), keep=forgot).collect(4)
    assert len(bench(client("12"), keep=lambda group: np.bool_(True)).collect(4).groups) == 4


def test_a_filter_cannot_change_what_is_trained_on(bench, client):
    def zero(group):
        group.samples[0].loss_mask[0] = 0
        return True

    collected = None
    with pytest.raises(EngineError, match="a reward or filter may not change its sample"):
        collected = bench(client("12"), keep=zero).collect(4)
    assert collected is None


def test_a_generator_that_cancels_itself_fails_its_group(bench, client):
    def act(samples):
        raise asyncio.CancelledError

    with pytest.raises(EngineError, match="cancelled its own task"):
        bench(client(), generator=Custom(act)).collect(4)


def test_a_raising_filter_is_counted_with_its_place(bench, client):
    def keep(group):
        return group.nothing

    with pytest.raises(EngineError, match=r"filter raised AttributeError: filter .*keep: AttributeError at .*driver"):
        bench(client("12"), keep=keep).collect(4)


def test_a_filter_that_exits_or_hangs_costs_its_group_and_no_more(bench, client):
    release = threading.Event()

    def keep(group):
        if group.id == 1:
            sys.exit(0)
        if group.id == 2:
            release.wait(60)
        return True

    made = bench(client("12"), keep=keep)
    made.driver._keep = GroupFilter(keep, "mine", deadline=0.2)
    collected = made.collect(3)
    release.set()
    assert [group.id for group in collected.groups] == [0, 3, 4]
    first, second = sorted(dropped.reason for dropped in collected.dropped)
    assert first.startswith("filter raised SystemExit: filter mine: SystemExit at ")
    assert second.startswith("filter raised TimeoutError: filter mine: TimeoutError: no result in 0.2 s")


def test_tasks_that_a_generator_leaves_are_cancelled_and_warned_of_by_name(bench, client, caplog):
    ended = []

    async def poll():
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("poll")

    started = set()

    async def act(samples):
        started.add(asyncio.create_task(start()))
        await asyncio.sleep(0.01)
        return [finished(sample) for sample in samples]

    async def start():  # a task of a task
        started.add(asyncio.create_task(poll()))
        await asyncio.sleep(600)

    made = bench(client(), generator=Waits(act))
    made.driver._runner = dataclasses.replace(made.driver._runner, source=" of plugin 'mine' (my-dist 1.0)")
    made.collect(4)  # which looks that nothing runs after it
    assert ended == ["poll"] * 4
    texts = [record.getMessage() for record in caplog.records if record.kind.endswith("left tasks")]
    assert len(texts) == 4
    assert "Waits.generate of plugin 'mine' (my-dist 1.0) returned while 2 tasks that it had started" in texts[0]
    assert "poll" in texts[0]


def test_a_task_with_a_context_of_its_own_outlives_its_group(bench, client, caplog):
    tasks = []

    async def act(samples):
        tasks.append(asyncio.create_task(asyncio.sleep(0.2, "done"), context=contextvars.Context()))
        return [finished(sample) for sample in samples]

    made = bench(client(), generator=Waits(act))

    async def run():
        await made.driver.collect(0, 4)
        return [await task for task in tasks]

    assert asyncio.run(run()) == ["done"] * 4
    assert not caplog.records


def test_the_traceback_of_a_generator_is_kept_with_its_plugin(bench, client, caplog):
    calls = []

    async def act(samples):
        calls.append(samples)
        if len(calls) == 1:
            raise KeyError("tool")
        return [finished(sample) for sample in samples]

    made = bench(client(), generator=Waits(act))
    made.driver._runner = dataclasses.replace(made.driver._runner, source=" of plugin 'mine' (my-dist 1.0)")
    assert made.collect(4).retried == 1
    first, second = caplog.records
    assert re.match(r".*Waits.generate of plugin 'mine' \(my-dist 1.0\): KeyError at .*\.py:\d+: 'tool'", first.message)
    assert first.exc_info[1].args == ("tool",)
    assert re.match(r"group \d is sampled again: KeyError at .*'tool' \(.*of plugin 'mine'", second.message)


def test_no_request_passes_a_shut_gate(client, tokenizer):
    from vime_core.api.rollout import SamplingParams

    async def run():
        engine = client("12")
        gate = Gate(engine)
        await gate.abort()
        replies = await gate.generate(GenerateRequest(("a", "b"), [5], SamplingParams(3)))
        assert [(r.id, r.tokens, r.finish) for r in replies] == [("a", [], "abort"), ("b", [], "abort")]
        assert (engine.calls, engine.aborts) == ([], 0)
        gate.open()
        assert len(await gate.generate(GenerateRequest(("a",), [5], SamplingParams(3)))) == 1

    asyncio.run(run())


def test_state_after_a_step_is_json_and_resumes(bench, client):
    made = bench(client("12"), over_sampling_batch_size=6)
    made.collect(4)
    text = json.dumps([made.buffer.state_dict(), made.ledger.state_dict()], allow_nan=False)
    expected = [g.id for g in made.collect(4, 1).groups]
    other = bench(client("12"), over_sampling_batch_size=6)
    buffer, ledger = json.loads(text)
    other.buffer.load_state_dict(buffer)
    other.ledger.load_state_dict(ledger)
    assert [g.id for g in other.collect(4, 1).groups] == expected
