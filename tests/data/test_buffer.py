from __future__ import annotations

import json
import math
import random

import pytest

from vime_core.api.errors import CheckpointError, DataError
from vime_core.api.reward import Score, Unscored
from vime_core.api.sample import Status
from vime_core.data.buffer import DataBuffer
from vime_core.data.dataset import Prompt, PromptDataset


def dataset(rows: int, offset: int = 0) -> PromptDataset:
    return PromptDataset(
        "toy", [Prompt(f"p{i}", [i + offset], i, {"deep": {"list": [i]}}, None, f"f:{i + 1}") for i in range(rows)]
    )


def buffer(rows: int = 5, seed: int = 1, shuffle: bool = True, n: int = 2) -> DataBuffer:
    return DataBuffer(dataset(rows), seed, shuffle, n)


def prompts(groups):
    return [group.samples[0].prompt for group in groups]


def finish(group):
    for sample in group.samples:
        sample.append_model([1, 2], [-0.5, -0.1], [3, 3])
        sample.append_observation([7])
        sample.status, sample.reward = Status.COMPLETED, Score(1.0, {"a": 0.5})
    return group


def test_epochs_cover_the_set_in_new_orders_without_the_global_generator():
    state = random.getstate()
    taken = prompts(buffer(rows=20).take(60))
    assert random.getstate() == state
    epochs = [taken[i : i + 20] for i in (0, 20, 40)]
    assert all(sorted(epoch) == sorted(f"p{i}" for i in range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    random.seed(99)
    assert prompts(buffer(rows=20).take(60)) == taken


def test_unshuffled_is_file_order():
    assert prompts(buffer(rows=3, shuffle=False).take(4)) == ["p0", "p1", "p2", "p0"]


def test_ids_are_unique_in_the_run_and_nothing_is_shared():
    groups = buffer(rows=3, n=4).take(10)
    samples = [s for g in groups for s in g.samples]
    assert len({g.id for g in groups}) == len({s.prompt_id for s in samples}) == 10
    assert len({s.rollout for s in samples}) == 40
    assert [s.index for s in groups[0].samples] == [0, 1, 2, 3]
    samples[0].metadata["deep"]["list"].append("x")
    samples[0].prompt_tokens.append(9)
    same = [s for s in samples[1:] if s.prompt == samples[0].prompt]
    assert same
    assert all(len(s.metadata["deep"]["list"]) == 1 and len(s.prompt_tokens) == 1 for s in same)


def test_put_back_comes_first_finished_as_it_is_and_unfinished_afresh():
    data = buffer()
    first, second, third = data.take(3)
    finish(second)
    third.samples[0].append_model([1], [-1.0], [0])
    third.samples[0].metadata["stale"] = True
    data.put_back([third, second])
    again = data.take(3)
    assert [g.id for g in again[:2]] == [third.id, second.id]
    assert again[1] is second
    assert again[0].samples[0].response_tokens == []
    assert "stale" not in again[0].samples[0].metadata
    assert [s.rollout for s in again[0].samples] == [s.rollout for s in third.samples]
    assert again[2].id == 3
    data.end(first.id)


def test_a_step_larger_than_the_set_is_refused_at_start():
    with pytest.raises(DataError, match=r"'toy' has 5 prompts, a step takes 6.*--rollout-batch-size"):
        buffer().require(6)
    buffer().require(5)


@pytest.mark.parametrize("shuffle", [True, False])
def test_resume_at_every_step_gives_the_same_sequence(shuffle):
    straight = buffer(shuffle=shuffle)
    expected = [[(s.prompt, s.group, s.rollout) for g in straight.take(2) for s in g.samples] for _ in range(8)]
    for stop in range(8):
        data = buffer(shuffle=shuffle)
        for _ in range(stop):
            for group in data.take(2):
                data.end(group.id)
        resumed = buffer(shuffle=shuffle)
        resumed.load_state_dict(json.loads(json.dumps(data.state_dict(), allow_nan=False)))
        rest = [[(s.prompt, s.group, s.rollout) for g in resumed.take(2) for s in g.samples] for _ in range(stop, 8)]
        assert rest == expected[stop:]


def test_resume_keeps_buffered_and_in_flight_groups():
    data = buffer()
    done, flying, kept, back = data.take(4)
    data.end(done.id)
    data.put_back([finish(kept), back])
    text = json.dumps(data.state_dict(), allow_nan=False)
    resumed = buffer()
    resumed.load_state_dict(json.loads(text))
    groups = resumed.take(4)
    assert [g.id for g in groups] == [flying.id, kept.id, back.id, 4]
    assert not groups[0].finished
    restored, original = groups[1].samples[0], kept.samples[0]
    assert (restored.response_tokens, restored.loss_mask, restored.versions) == ([1, 2, 7], [1, 1, 0], [3, 3, -1])
    assert restored.logprobs[:2] == original.logprobs[:2]
    assert math.isnan(restored.logprobs[2])
    assert restored.reward == Score(1.0, {"a": 0.5})
    assert restored.status is Status.COMPLETED


def test_unscored_and_unserialisable_groups_survive():
    data = buffer()
    odd, plain = data.take(2)
    finish(odd).samples[0].metadata["object"] = object()
    finish(plain).samples[1].reward = Unscored("why")
    data.put_back([odd, plain])
    resumed = buffer()
    resumed.load_state_dict(json.loads(json.dumps(data.state_dict())))
    first, second = resumed.take(2)
    assert (first.id, first.finished) == (odd.id, False)
    assert second.samples[1].reward == Unscored("why")


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (lambda: DataBuffer(dataset(5, offset=1), 1, True, 2), "dataset"),
        (lambda: buffer(rows=6), "rows was 5, is 6"),
        (lambda: buffer(seed=2), "rollout_seed was 1, is 2"),
        (lambda: buffer(shuffle=False), "rollout_shuffle"),
        (lambda: buffer(n=3), "n_samples_per_prompt was 2, is 3"),
    ],
)
def test_resume_refuses_another_stream(other, named):
    state = buffer().state_dict()
    with pytest.raises(CheckpointError, match=named):
        other().load_state_dict(state)


def test_resume_refuses_an_incomplete_state():
    state = buffer().state_dict()
    del state["queue"]
    with pytest.raises(CheckpointError, match="incomplete: KeyError"):
        buffer().load_state_dict(state)
