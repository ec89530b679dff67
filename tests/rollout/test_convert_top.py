"""The sampler's likeliest tokens on their way: from an engine's words to two columns of the step batch."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vime_core.api.errors import EngineError
from vime_core.api.reward import Score
from vime_core.api.rollout import SamplingParams
from vime_core.api.sample import Group, Sample, Status
from vime_core.api.streams import TOP_IDS, TOP_LOGP, TokenStream
from vime_core.batch.step_batch import StepBatch
from vime_core.data.codec import sample_from_json, sample_to_json
from vime_core.inference.columns import ReplyColumns, UncheckedReply
from vime_core.inference.vllm.sampling import vllm_sampling
from vime_core.inference.vllm.top_logprobs import split_flat, top_from_content
from vime_core.rollout.convert import to_batch

Table = dict[TokenStream, np.ndarray]


def table(length: int, k: int = 3, seed: int = 0) -> Table:
    dice = np.random.default_rng(seed)
    ids = np.stack([dice.permutation(50)[:k] for _ in range(length)]) if length else np.zeros((0, k))
    return {TOP_IDS: ids.astype(np.int32), TOP_LOGP: -dice.random((length, k)).astype(np.float32)}


def sample(response: int, index: int = 0, top: Table | None = None) -> Sample:
    made = Sample(0, 7, 70 + index, index, "p", prompt_tokens=[1, 2], reward=Score(1.0))
    made.append_model([1] * response, [-1.0] * response, [0] * response, top)
    made.status = Status.COMPLETED
    return made


def columns(*samples: Sample) -> tuple[np.ndarray, np.ndarray]:
    batch = to_batch([Group(7, list(samples))], streams=[TOP_IDS, TOP_LOGP])
    assert batch.extra[TOP_IDS.name][0] == batch.extra[TOP_LOGP.name][0] == "response"
    return batch.extra[TOP_IDS.name][1], batch.extra[TOP_LOGP.name][1]


# from the engine -------------------------------------------------------------------------------------------------
def test_one_more_is_asked_for_than_wanted() -> None:
    asked = [vllm_sampling(SamplingParams(4, top_logprobs=k), None)["logprobs"] for k in (0, 1, 128)]
    assert asked == [0, 2, 129]


def test_both_transports_say_the_same() -> None:
    """vLLM's flat list and its server's, for a sampled token that is likely, and for one that is not."""
    flat: Any = SimpleNamespace(
        token_ids=[5, 9, 5, 4, 7, 9, 5, 4], logprobs=[-0.9, -0.5, -0.9, -2.0, -6.0, -0.2, -1.9, -3.0]
    )
    sampled, top = split_flat("r", [5, 7], flat)
    places = [[(5, -0.9), (9, -0.5), (4, -2.0)], [(7, -6.0), (9, -0.2), (5, -1.9)]]
    content = [{"top_logprobs": [{"token_id": t, "logprob": x} for t, x in place]} for place in places]
    served = top_from_content("r", content, 2)
    assert sampled == pytest.approx([-0.9, -6.0])
    assert top[TOP_IDS].tolist() == served[TOP_IDS].tolist() == [[9, 5], [9, 5]]
    np.testing.assert_array_equal(top[TOP_LOGP], served[TOP_LOGP])


def test_nothing_was_asked_for() -> None:
    flat: Any = SimpleNamespace(token_ids=[5, 7], logprobs=[-0.9, -6.0])
    assert split_flat("r", [5, 7], flat) == ([-0.9, -6.0], {})
    assert top_from_content("r", [{"top_logprobs": []}], 0) == {}


def test_a_table_with_holes_is_an_error() -> None:
    flat: Any = SimpleNamespace(token_ids=[5, 9, 5, 4, 7], logprobs=[-1.0] * 5)
    with pytest.raises(EngineError, match="request r: 5 log-probs for 2 tokens are no table"):
        split_flat("r", [5, 7], flat)
    with pytest.raises(EngineError, match="request r: place 0 has 1 likeliest tokens, not 2"):
        top_from_content("r", [{"top_logprobs": [{"token_id": 1, "logprob": -1.0}]}], 2)
    with pytest.raises(EngineError, match="likeliest tokens of 1 positions came with 2 tokens"):
        UncheckedReply("r", [5, 7], [-1.0, -1.0], [("0", 0, 2)], "stop", 0, table(1)).checked()
    with pytest.raises(ValueError, match=r"rollout_top_logp \[2, 2\] and rollout_top_ids differ in shape"):
        sample(2, top={TOP_IDS: np.zeros((2, 3), np.int32), TOP_LOGP: np.zeros((2, 2), np.float32)})


def test_replies_travel_as_columns() -> None:
    first, second = (
        UncheckedReply(id, [1] * n, [-1.0] * n, [("3", 0, n)], "stop", 0, table(n, seed=n)).checked()
        for id, n in (("a", 2), ("b", 3))
    )
    back = ReplyColumns.pack([first, second]).unpack()
    for reply, given in zip(back, (first, second), strict=True):
        np.testing.assert_array_equal(reply.streams[TOP_IDS], given.streams[TOP_IDS])
        np.testing.assert_array_equal(reply.streams[TOP_LOGP], given.streams[TOP_LOGP])


# in the sample and the batch -------------------------------------------------------------------------------------
def test_rows_stand_at_their_tokens() -> None:
    """Observations between and after turns have none, and rows stay with their samples."""
    one = sample(2, 0, table(2))
    one.append_observation([8, 8])
    one.append_model([1], [-1.0], [0], table(1, seed=5))
    one.append_observation([9])
    ids, values = columns(one, sample(1, 1, table(1, seed=6)))
    assert ids.shape == values.shape == (7, 3)
    assert (ids.dtype, values.dtype) == (np.int32, np.float32)
    assert np.isnan(values[[2, 3, 5]]).all()
    np.testing.assert_array_equal(ids[:2], table(2)[TOP_IDS])
    np.testing.assert_array_equal(values[4], table(1, seed=5)[TOP_LOGP][0])
    np.testing.assert_array_equal(values[6], table(1, seed=6)[TOP_LOGP][0])
    batch = to_batch([Group(7, [one, sample(1, 1, table(1, seed=6))])], streams=[TOP_IDS, TOP_LOGP])
    taken = StepBatch.concat([batch.take([1]), batch.take([0])])
    np.testing.assert_array_equal(taken.extra[TOP_IDS.name][1], np.concatenate([ids[6:], ids[:6]]))


def test_a_sample_comes_back_from_json() -> None:
    given = sample(2, 0, table(2))
    back = sample_from_json(json.loads(json.dumps(sample_to_json(given))))
    np.testing.assert_array_equal(back.streams[TOP_IDS], table(2)[TOP_IDS])
    np.testing.assert_array_equal(back.streams[TOP_LOGP], table(2)[TOP_LOGP])
    back.reset()
    assert back.streams == {}


def test_who_lacks_them_is_named() -> None:
    with pytest.raises(EngineError, match=r"rollout 71\) has likeliest tokens of 0 tokens and needs those of 2"):
        columns(sample(2, 0, table(2)), sample(2, 1))
    later = sample(2, 0, table(2))
    later.append_model([1], [-1.0], [0])
    with pytest.raises(EngineError, match=r"group 7 sample 0 .* has likeliest tokens of 2 tokens and needs those of 3"):
        columns(later)
    with pytest.raises(EngineError, match=r"likeliest tokens of k \[\(2,\), \(3,\)\]"):
        columns(sample(2, 0, table(2)), sample(2, 1, table(2, k=2)))
    with pytest.raises(ValueError, match="3 rows of likeliest tokens where 2 belong to 2 new tokens"):
        sample(2, 0, table(3))


def test_other_runs_have_no_such_columns() -> None:
    assert TOP_IDS.name not in to_batch([Group(7, [sample(2)])]).extra
