from __future__ import annotations

import asyncio
import copy
import math
import pickle
import re
import sys
import threading
import time

import numpy as np
import pytest

from vime_core.api.errors import PluginError, RewardError
from vime_core.api.reward import Score, Unscored
from vime_core.api.sample import Sample
from vime_core.config.sections import RolloutSection
from vime_core.rollout.scoring import Scorer, judge


def score(reward, n=1, group=False, key=None, timeout=5.0, concurrency=4, samples=None):
    samples = samples or [Sample(0, 0, i, i, "p", [1], response=str(i)) for i in range(n)]

    async def run():
        rollout = RolloutSection(
            group_rm=group, reward_key=key, reward_timeout_secs=timeout, reward_concurrency=concurrency
        )
        scorer = Scorer(reward, "mine", rollout)
        await scorer.score(samples)
        scorer.close()

    asyncio.run(run())
    return [sample.reward for sample in samples]


async def async_one(sample):
    await asyncio.sleep(0)
    return 1.0


class AsyncObject:
    async def __call__(self, sample):
        return 1.0


class PlainObject:
    def __call__(self, sample):
        return Score(1.0)


@pytest.mark.parametrize(
    "reward",
    [lambda s: 1.0, lambda s: 1, lambda s: True, lambda s: np.float32(1), lambda s: np.array(1.0), async_one,
     AsyncObject(), AsyncObject, PlainObject(), PlainObject, lambda s: async_one(s)],
)  # fmt: skip
def test_kinds_of_rewards(reward):
    assert score(reward, n=3) == [Score(1.0)] * 3


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "not a number: reward mine returned NoneType None"),
        ("1.0", "not a number: reward mine returned str '1.0'"),
        ([1.0], "not a number: reward mine returned list"),
        (math.nan, "not finite: reward mine returned nan"),
        (math.inf, "not finite: reward mine returned inf"),
        (Score(math.nan), "not finite"),
        (Score("1"), "not a number"),  # type: ignore[arg-type]
        (Score(1.0, {"a": "x"}), "not a number: reward mine returned part 'a'"),  # type: ignore[dict-item]
        ({"acc": 1}, "no reward key: reward mine returned parts dict {'acc': 1}; --reward-key"),
        (Unscored("no verdict"), "no verdict"),
    ],
)
def test_what_is_no_score_is_unscored_never_zero(value, reason):
    (verdict,) = score(lambda s: value)
    assert isinstance(verdict, Unscored)
    assert reason in verdict.reason


def test_reward_key():
    assert score(lambda s: {"acc": 1, "len": 5}, key="acc") == [Score(1.0, {"acc": 1.0, "len": 5.0})]
    assert score(lambda s: Score(0.5, {"acc": 1.0}), key="acc") == [Score(1.0, {"acc": 1.0})]
    (missing,) = score(lambda s: {"acc": 1}, key="other")
    assert missing == Unscored("no part other: reward mine returned parts acc")
    (bad,) = score(lambda s: {"acc": math.nan, "len": 2}, key="acc")
    assert "not finite" in bad.reason


def test_a_raising_reward_leaves_one_sample_unscored_with_type_and_place():
    def reward(sample):
        if sample.index == 1:
            return int("nonsense")
        return 1.0

    first, second, third = score(reward, n=3)
    assert first == third == Score(1.0)
    line = reward.__code__.co_firstlineno + 2
    assert second.reason.startswith("raised ValueError: reward mine: ValueError at ")
    assert f"test_scoring.py:{line}: invalid literal" in second.reason


def test_a_raising_async_reward():
    async def reward(sample):
        raise KeyError("label")

    (verdict,) = score(reward)
    assert verdict.reason.startswith("raised KeyError: reward mine")


def test_blocking_reward_that_hangs_is_given_up_and_the_rest_is_scored():
    release = threading.Event()

    def reward(sample):
        if sample.index == 1:
            release.wait(60)
        return float(sample.index)

    verdicts = score(reward, n=6, timeout=0.3, concurrency=1)
    release.set()
    assert [v.value for i, v in enumerate(verdicts) if i != 1] == [0.0, 2.0, 3.0, 4.0, 5.0]
    assert verdicts[1].reason.startswith("timeout: reward mine gave no result in 0.3 s")


def test_a_reward_class_that_raises_or_says_nonsense_is_named(caplog):
    class Raises:
        def __init__(self):
            raise KeyError("JUDGE_URL")

    class Odd:
        concurrency = "two"

        def __call__(self, sample):
            return 1.0

    class Sticks:
        def __call__(self, sample):
            return 1.0

        def close(self):
            raise OSError("gone")

    with pytest.raises(PluginError, match=r"reward mine could not be made: KeyError at .*scoring.py:\d+: 'JUDGE_URL'"):
        score(Raises)
    with pytest.raises(RewardError, match="reward mine: its concurrency is str 'two'; it must be a count"):
        score(Odd)
    caplog.clear()
    assert score(Sticks) == [Score(1.0)]
    assert "reward mine: close: OSError at" in caplog.records[0].message


def test_calls_that_never_end_do_not_pile_up():
    release, begun = threading.Event(), []

    def reward(sample):
        begun.append(sample.index)
        release.wait(60)
        return 1.0

    async def run():
        rollout = RolloutSection(reward_timeout_secs=0.02, reward_concurrency=4)
        scorer = Scorer(reward, "mine", rollout)
        samples = [Sample(0, 0, i, i, "p", [1]) for i in range(40)]
        await scorer.score(samples)
        release.set()
        for _ in range(200):
            later = [Sample(1, 1, 99, 0, "p", [1])]
            await scorer.score(later)
            if isinstance(later[0].reward, Score):
                break
            await asyncio.sleep(0.02)
        scorer.close()
        return [sample.reward.reason for sample in samples], later[0].reward

    reasons, later = asyncio.run(run())
    refused = [reason for reason in reasons if reason.startswith("refused: ")]
    assert len(reasons) - len(refused) <= 16 + 4
    assert re.match(
        r"refused: \d+ calls of reward mine still run past their deadline of 0.02 s, and no more are begun until some "
        "end: give it a time limit of its own",
        refused[0],
    )
    assert later == Score(1.0)  # once some have ended


def test_async_reward_that_hangs_is_given_up():
    async def reward(sample):
        await asyncio.sleep(60 if sample.index == 0 else 0)
        return 1.0

    first, second = score(reward, n=2, timeout=0.2)
    assert first.reason.startswith("timeout")
    assert second == Score(1.0)


def test_timeout_raised_by_the_reward_itself_is_its_own_error():
    def reward(sample):
        raise TimeoutError("judge is down")

    (verdict,) = score(reward)
    assert verdict.reason.startswith("raised TimeoutError")
    assert "judge is down" in verdict.reason


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_concurrency_is_used_and_bounded(kind):
    running, most, lock = 0, 0, threading.Lock()

    def enter(step):
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)

    def sync(sample):
        enter(1)
        time.sleep(0.02)
        enter(-1)
        return 1.0

    async def asynchronous(sample):
        enter(1)
        await asyncio.sleep(0.02)
        enter(-1)
        return 1.0

    score(sync if kind == "sync" else asynchronous, n=12, concurrency=4)
    assert most == 4


def test_group_reward_is_declared():
    class Ranks:
        def score_group(self, samples):
            return [float(len(samples) - s.index) for s in samples]

    assert [v.value for v in score(Ranks(), n=3, group=True)] == [3.0, 2.0, 1.0]
    with pytest.raises(RewardError, match="it has score_group: set --group-rm"):
        score(Ranks())
    with pytest.raises(RewardError, match="--group-rm needs an object with score_group"):
        score(lambda s: 1.0, group=True)


@pytest.mark.parametrize("answer", [[1.0], [1.0, 2.0, 3.0], None, 1.0, "ab", {"a": 1}])
def test_group_reward_of_another_length_judges_nobody(answer):
    class Wrong:
        async def score_group(self, samples):
            return answer

    verdicts = score(Wrong(), n=2, group=True)
    assert all(v.reason.startswith("not a list of the group's length: reward mine returned") for v in verdicts)


def test_group_reward_that_raises_and_mixed_answers():
    class Raising:
        def score_group(self, samples):
            raise RuntimeError("no judge")

    class Mixed:
        def score_group(self, samples):
            return [1.0, None, Unscored("unclear")]

    assert all("raised RuntimeError" in v.reason for v in score(Raising(), n=2, group=True))
    verdicts = score(Mixed(), n=3, group=True)
    assert verdicts[0] == Score(1.0)
    assert [isinstance(v, Unscored) for v in verdicts] == [False, True, True]


@pytest.mark.parametrize("reward", [lambda: 1.0, lambda args, sample: 1.0, lambda *, sample: 1.0])
def test_signature_is_checked_at_start(reward):
    with pytest.raises(RewardError, match=r"its signature is .*, it is called with one argument \(a sample\)"):
        score(reward)


def test_defaults_and_builtins_are_fine():
    assert score(lambda sample, scale=2.0: scale) == [Score(2.0)]
    with pytest.raises(RewardError, match="str cannot be called"):
        score("no function")


@pytest.mark.parametrize(
    "change",
    [
        lambda s: setattr(s, "response", "2"),
        lambda s: s.loss_mask.__setitem__(0, 0),
        lambda s: s.response_tokens.pop(),
        lambda s: s.metadata.update(seen=1),
        lambda s: s.metadata["entry"].append(1),
        lambda s: s.append_model([1], [-1.0], [0]),
        lambda s: delattr(s, "response"),
    ],
)
def test_a_reward_cannot_change_its_sample(change):
    sample = Sample(0, 0, 0, 0, "p", [1], label="2", metadata={"entry": [1, 2]}, response="2")
    sample.append_model([5, 6], [-1.0, -1.0], [0, 0])
    before = copy.deepcopy(sample)

    def reward(seen):
        change(seen)
        return 1.0

    asyncio.run(Scorer(reward, "mine", RolloutSection()).score([sample]))
    assert "may not change its sample" in sample.reward.reason
    sample.reward = None
    assert sample == before


def test_a_reward_may_change_a_copy_and_send_its_sample_on():
    def reward(seen):
        mine = copy.deepcopy(seen)
        mine.metadata["entry"].append(3)
        mine.response_tokens.append(7)
        return float(len(pickle.loads(pickle.dumps(seen)).response_tokens) + len(mine.metadata["entry"]))

    sample = Sample(0, 0, 0, 0, "p", [1], label="2", metadata={"entry": [1, 2]})
    sample.append_model([5, 6], [-1.0, -1.0], [0, 0])
    asyncio.run(Scorer(reward, "mine", RolloutSection()).score([sample]))
    assert sample.reward.value == 5.0
    assert sample.metadata == {"entry": [1, 2]}


@pytest.mark.parametrize("is_async", [False, True])
def test_sys_exit_in_a_reward_is_its_error_at_once(is_async):
    def leave(seen):
        sys.exit(3)

    async def leave_async(seen):
        sys.exit(3)

    sample, begun = Sample(0, 0, 0, 0, "p", [1]), time.monotonic()
    scorer = Scorer(leave_async if is_async else leave, "mine", RolloutSection(reward_timeout_secs=30.0))
    asyncio.run(scorer.score([sample]))
    assert sample.reward.reason.startswith("raised SystemExit: reward mine: SystemExit at ")
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize("value", [np.bool_(True), {"right": np.bool_(True), "short": np.float32(0.5)}])
def test_booleans_of_numpy_are_numbers(value):
    key = "right" if isinstance(value, dict) else None
    verdict = judge(value, "mine", key)
    assert verdict.value == 1.0


def test_a_reward_that_float32_cannot_tell_from_others_is_none():
    assert judge(1e29, "mine", None).value == 1e29
    assert judge(-1e300, "mine", None).reason.startswith("too large: reward mine returned -1e+300")
    assert judge(-(10**400), "mine", None).reason == "not finite: reward mine returned -inf"


def test_a_reward_says_how_many_calls_it_takes_at_a_time():
    class Two:
        concurrency = 2
        running = most = 0

        def __call__(self, seen):
            Two.running += 1
            Two.most = max(Two.most, Two.running)
            time.sleep(0.01)
            Two.running -= 1
            return 1.0

    samples = [Sample(0, 0, n, n, "p", [1]) for n in range(12)]
    asyncio.run(Scorer(Two, "mine", RolloutSection()).score(samples))
    assert Two.most <= 2


def test_arguments_of_a_reward_class():
    class Scaled:
        def __init__(self, factor=1.0):
            self.factor = factor

        def __call__(self, seen):
            return self.factor

    sample = Sample(0, 0, 0, 0, "p", [1])
    asyncio.run(Scorer(Scaled, "mine", RolloutSection(reward_kwargs={"factor": 3.0})).score([sample]))
    assert sample.reward.value == 3.0
    with pytest.raises(RewardError, match=r"Scaled\(factor=1.0\) cannot be made with --reward-kwargs \{'fctor': 3.0\}"):
        Scorer(Scaled, "mine", RolloutSection(reward_kwargs={"fctor": 3.0}))
    with pytest.raises(RewardError, match="--reward-kwargs are for a class, this is a function"):
        Scorer(lambda seen: 1.0, "mine", RolloutSection(reward_kwargs={"factor": 3.0}))
