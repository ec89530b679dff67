from __future__ import annotations

import math

import numpy as np
import pytest

from vime_core.api.reward import Score, Unscored
from vime_core.api.sample import Group, Status
from vime_core.data.ledger import GroupOutcome
from vime_core.rollout.convert import records, to_batch
from vime_core.rollout.driver import Collected, DroppedGroup
from vime_core.rollout.evaluation import pass_at_k
from vime_core.rollout.metrics import is_repetitive, step_metrics


def test_batch_holds_every_stream(group):
    first, second = group([1.0, 0.5], id=3), group([0.0], id=5, tokens=1, version=4)
    first.samples[1].append_observation([8, 9])
    first.samples[1].append_model([7], [-2.0], [2])
    second.samples[0].status = Status.TRUNCATED
    batch = to_batch([first, second])
    assert batch.total_lengths.tolist() == [7, 10, 5]
    assert batch.response_lengths.tolist() == [3, 6, 1]
    assert batch.tokens.tolist() == [t for g in (first, second) for s in g.samples for t in s.tokens]
    assert batch.mask.tolist() == [True] * 6 + [False, False, True, True]
    assert np.isnan(batch.rollout_logp).tolist() == [False] * 6 + [True, True, False, False]
    assert batch.version.tolist() == [1] * 6 + [-1, -1, 2, 4]
    assert batch.reward.tolist() == [1.0, 0.5, 0.0]
    assert (batch.group.tolist(), batch.rollout.tolist()) == ([3, 3, 5], [300, 301, 500])
    assert batch.truncated.tolist() == [False, False, True]


def test_batch_of_groups_of_different_sizes_keeps_group_ids(group):
    batch = to_batch([group([1] * n, id=i) for i, n in enumerate((4, 3, 4))])
    assert np.bincount(batch.group).tolist() == [4, 3, 4]


def test_no_reward_is_never_a_zero(group):
    first, second = to_batch([group([1.0, Unscored("x")])]).reward
    assert (first, math.isnan(second)) == (1.0, True)
    unjudged = group([1.0])
    unjudged.samples[0].reward = None
    with pytest.raises(ValueError, match="has no score"):
        to_batch([unjudged])
    assert all(math.isnan(x) for x in to_batch([group([Unscored("x")])], rewarded=False).reward)
    pending = group([1.0])
    pending.samples[0].status = Status.ABORTED
    with pytest.raises(ValueError, match="unfinished samples"):
        to_batch([pending])


def test_empty_batch_and_empty_response(group):
    assert len(to_batch([])) == 0
    assert to_batch([group([1.0], tokens=0)]).response_lengths.tolist() == [0]


def test_metrics_by_name(group):
    kept = [group([1.0, 0.0], id=0, tokens=2, version=5), group([0.5, 0.5], id=1, tokens=4, version=3)]
    kept[0].samples[0].status = Status.TRUNCATED
    kept[0].samples[1].reward = Score(0.0, {"format/x": 1.0, "bad": math.nan})
    dropped = [DroppedGroup(group([1, 1], id=2), GroupOutcome.FILTERED, "zero_std_1.0")] * 2
    dropped.append(DroppedGroup(group([Unscored("x")], id=3), GroupOutcome.UNSCORED, "x"))
    figures = step_metrics(Collected(0, kept, dropped, surplus=1, aborted=2, retried=3))
    assert figures == {
        "rollout/response_len/mean": 3.0,
        "rollout/response_len/median": 3.0,
        "rollout/response_len/max": 4.0,
        "rollout/response_len/min": 2.0,
        "rollout/truncated_ratio": 0.25,
        "rollout/repetition_frac": 0.0,
        "rollout/raw_reward": 0.5,
        "rollout/unscored_samples": 0.0,
        "rollout/reward_parts/format_x": 1.0,
        "rollout/staleness/mean": 1.0,
        "rollout/staleness/max": 2.0,
        "rollout/zero_std/count_0.5": 1.0,
        "rollout/dynamic_filter/drop_zero_std_1.0": 2.0,
        "rollout/requeued/surplus": 1.0,
        "rollout/requeued/aborted": 2.0,
        "rollout/requeued/retried": 3.0,
    }


def test_empty_lists_give_no_numbers():
    assert set(step_metrics(Collected(0))) == {f"rollout/requeued/{n}" for n in ("surplus", "aborted", "retried")}


def test_every_metric_is_in_the_catalogue(group):
    from vime_core.observe.catalog import unknown

    kept = [group([1.0, 1.0], id=0)]
    kept[0].samples[0].reward = Score(1.0, {"part": 1.0})
    names = set(
        step_metrics(Collected(0, kept, [DroppedGroup(group([1, 1], id=1), GroupOutcome.FILTERED, "zero_std_1.0")]))
    )
    assert unknown(names) == []


def test_repetition():
    assert is_repetitive("so it is " * 100)
    assert not is_repetitive("so it is")
    assert not is_repetitive("".join(str(i * 7919 % 1000) for i in range(300)))
    assert not is_repetitive("")


def test_dump_holds_kept_and_dropped_as_json(group):
    import json

    kept = group([1.0], id=0)
    kept.samples[0].append_observation([9])
    dropped = [DroppedGroup(group([Unscored("why")], id=1), GroupOutcome.UNSCORED, "why")]
    text = json.loads(json.dumps(records(Collected(7, [kept], dropped)), allow_nan=False))
    assert [(r["step"], r["group"], r["outcome"], r["reason"]) for r in text] == [
        (7, 0, "trained", ""),
        (7, 1, "unscored", "why"),
    ]
    assert text[0]["logprobs"] == [-0.5, -0.5, -0.5, None]


def test_pass_at_k(group):
    groups = [group([1, 0, 0, 0], id=0), group([0, 0, 0, 0], id=1)]
    assert pass_at_k(groups, "e") == {"e-pass@1": 0.125, "e-pass@2": 0.25, "e-pass@4": 0.5}
    assert pass_at_k([group([0.5, 1])], "e") == {}
    assert pass_at_k([group([1])], "e") == {}
    assert pass_at_k([], "e") == {}
    assert pass_at_k([Group(0, [])], "e") == {}
