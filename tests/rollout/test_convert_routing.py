"""The samples' experts as a token column, and the samples that lack some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vime_core.api.errors import EngineError
from vime_core.api.reward import Score
from vime_core.api.sample import Group, Sample, Status
from vime_core.api.streams import ROUTING
from vime_core.batch.step_batch import StepBatch
from vime_core.rollout.convert import to_batch


def sample(prompt: int, response: int, index: int = 0, routed: bool = True) -> Sample:
    made = Sample(0, 7, 70 + index, index, "p", prompt_tokens=list(range(prompt)), reward=Score(1.0))
    made.append_model(
        [1] * response, [-1.0] * response, [0] * response, {ROUTING: rows(prompt + response - 1)} if routed else None
    )
    made.status = Status.COMPLETED
    return made


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 200, (count, 3, 2)).astype(np.uint8)


def column(*samples: Sample) -> Any:
    return to_batch([Group(7, list(samples))], streams=[ROUTING])


def test_each_token_has_its_row_and_the_last_chooses_freely() -> None:
    first, second = sample(3, 4), sample(2, 1, 1)
    axis, routing = column(first, second).extra[ROUTING.name]
    assert (axis, routing.shape, routing.dtype) == ("token", (10, 3, 2), np.int16)
    np.testing.assert_array_equal(routing[:6], first.streams[ROUTING])
    np.testing.assert_array_equal(routing[7:9], second.streams[ROUTING])
    assert (routing[[6, 9]] == -1).all()


def test_rows_stay_with_their_samples() -> None:
    batch = column(sample(3, 4), sample(2, 1, 1), sample(5, 2, 2))
    routing = batch.extra[ROUTING.name][1]
    taken = StepBatch.concat([batch.take([2]), batch.take([0, 1])])
    np.testing.assert_array_equal(taken.extra[ROUTING.name][1], np.concatenate([routing[10:], routing[:10]]))


def test_a_last_observation_was_routed_by_nobody_and_needs_it_not() -> None:
    one = sample(3, 2)
    one.append_observation([9, 9])
    assert (column(one).extra[ROUTING.name][1][4:] == -1).all()


def test_a_sample_without_experts_is_named() -> None:
    message = r"group 7 sample 1 \(rollout 71\) has routed experts of 0 tokens and needs those of 5 \(1 of 2 samples\)"
    with pytest.raises(EngineError, match=message):
        column(sample(3, 4), sample(3, 3, 1, routed=False))


def test_a_later_turn_without_experts_is_named() -> None:
    one = sample(3, 2)
    one.append_observation([9])
    one.append_model([1], [-1.0], [0])
    with pytest.raises(EngineError, match="has routed experts of 4 tokens and needs those of 6"):
        column(one)


def test_experts_of_two_models_do_not_mix() -> None:
    other = sample(3, 2, 1)
    other.streams[ROUTING] = other.streams[ROUTING][:, :2]
    with pytest.raises(EngineError, match=r"layers and topk \[\(2, 2\), \(3, 2\)\]"):
        column(sample(3, 2), other)


def test_other_runs_have_no_such_column() -> None:
    assert ROUTING.name not in to_batch([Group(7, [sample(3, 2)])]).extra
