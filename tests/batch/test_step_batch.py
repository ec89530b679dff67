"""StepBatch: what goes in comes out, through slicing, concatenation and a process boundary, extra fields too."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.api import TrainerError
from vime_core.batch.stage_batch import StageBatch
from vime_core.batch.step_batch import SCHEMA, StepBatch


def example(shift: int = 0, *, old: bool = True) -> StepBatch:
    """Samples of 2, 0 and 3 response tokens after 1 prompt token each, with extra fields on every axis."""
    batch = small_batch(
        [[1, 0], [], [1, 1, 1]],
        tokens=np.arange(8) + 100 * shift,
        reward=[1.0, np.nan, 3.0],
        group=[shift, shift, shift + 1],
        rollout=np.arange(3) + 10 * shift,
        version=[4, 5, 6, 7, 8],
        rollout_logp=[-0.5, np.nan, -1.0, -2.0, -3.0],
        truncated=[False, False, True],
        extra={
            "name": ("sample", np.array([7, 8, 9])),
            "kind": ("token", np.arange(8, dtype="i2")),
            "experts": ("response", np.arange(10).reshape(5, 2)),
        },
    )
    return batch.with_old_logp(torch.arange(5.0)) if old else batch


def same(a: StepBatch, b: StepBatch) -> None:
    for name in SCHEMA:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert {k: axis for k, (axis, _) in a.extra.items()} == {k: axis for k, (axis, _) in b.extra.items()}
    for name, (_, x) in a.extra.items():
        np.testing.assert_array_equal(x, b.extra[name][1], err_msg=name)
        assert x.dtype == b.extra[name][1].dtype
    assert (a.old_logp is None) == (b.old_logp is None)
    if a.old_logp is not None and b.old_logp is not None:
        np.testing.assert_array_equal(a.old_logp, b.old_logp)


def test_sizes_and_index_maps() -> None:
    batch = example()
    assert (len(batch), batch.response_tokens) == (3, 5)
    assert batch.token_starts.tolist() == [0, 3, 4, 8]
    assert batch.response_starts.tolist() == [0, 2, 2, 5]
    assert batch.seg().tolist() == [0, 0, 2, 2, 2]
    assert batch.trainable_counts().tolist() == [1, 0, 3]
    assert batch.trainable_counts(torch.tensor([0, 1, 0, 0, 1]).bool()).tolist() == [1, 0, 1]
    assert batch.t("reward").dtype == torch.float64


@pytest.mark.parametrize("old", [True, False])
def test_take_all_in_order_is_the_batch(old: bool) -> None:
    same(example(old=old).take(range(3)), example(old=old))


def test_take_moves_every_field() -> None:
    got = example().take([2, 0])
    assert got.tokens.tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert got.mask.tolist() == [True, True, True, True, False]
    assert got.version.tolist() == [6, 7, 8, 4, 5]
    assert got.extra["name"][1].tolist() == [9, 7]
    assert got.extra["kind"][1].tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert got.extra["experts"][1].tolist() == [[4, 5], [6, 7], [8, 9], [0, 1], [2, 3]]
    assert got.old_logp is not None
    assert got.old_logp.tolist() == [2.0, 3.0, 4.0, 0.0, 1.0]
    assert got.truncated.tolist() == [True, False]


def test_take_nothing() -> None:
    got = example().take([])
    assert (len(got), got.response_tokens, got.seg().tolist()) == (0, 0, [])


def test_parts_concatenate_to_the_whole() -> None:
    whole = StepBatch.concat([example(0), example(1)])
    assert len(whole) == 6
    same(whole.take([0, 1, 2]), example(0))
    same(whole.take([3, 4, 5]), example(1))
    same(StepBatch.concat([whole.take([0, 1]), whole.take([2, 3, 4, 5])]), whole)


def test_concat_refuses_what_does_not_match() -> None:
    with pytest.raises(ValueError, match="extra fields differ"):
        StepBatch.concat([example(), small_batch([[1]])])
    with pytest.raises(ValueError, match="1 of 2 batches have old_logp"):
        StepBatch.concat([example(), example(old=False)])
    with pytest.raises(ValueError, match="no batches"):
        StepBatch.concat([])


def test_a_trip_through_pickle_5_shares_memory_and_stays_read_only() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(example(), protocol=5, buffer_callback=buffers.append)
    frozen = [bytes(b.raw()) for b in buffers]
    assert buffers, "arrays travel out of band"
    back = pickle.loads(data, buffers=frozen)
    same(back, example())
    assert not back.tokens.flags.writeable
    same(back.take([1, 2]), example().take([1, 2]))
    assert back.t("experts").shape == (5, 2)
    same(pickle.loads(pickle.dumps(example())), example())


def test_the_batch_cannot_be_written_to_and_leaves_the_callers_arrays_alone() -> None:
    mine = np.array([1.0, 2.0])
    batch = small_batch([[1], [1]], reward=mine)
    with pytest.raises(ValueError, match="read-only"):
        batch.reward[0] = 9
    with pytest.raises(ValueError, match="read-only"):
        example().extra["name"][1][0] = 9
    mine[0] = 5.0  # still ours


def test_torch_views_share_memory_and_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    batch = example()
    assert batch.t("tokens").data_ptr() == batch.tokens.ctypes.data
    assert not recwarn.list


def test_a_stage_writes_into_a_copy_and_is_found() -> None:
    batch = example()
    before, seen = pickle.loads(pickle.dumps(batch)), StageBatch.copy_of(batch)
    assert seen.written() == []
    seen.t("reward").zero_()
    seen.t("experts")[0] += 1
    seen.t("mask")
    torch.from_numpy(np.asarray(seen.rollout_logp)).fill_(0.0)
    assert seen.written() == ["reward", "experts"]
    for name in [*SCHEMA, *batch.extra, "old_logp"]:
        assert torch.equal(batch.t(name).nan_to_num(7.0), before.t(name).nan_to_num(7.0)), name
    with pytest.raises(AttributeError, match=r"no 'ref_logp'; columns that `needs` names are read by batch.t\('ref_lo"):
        seen.ref_logp  # noqa: B018


def test_old_log_probs() -> None:
    batch = example(old=False)
    with pytest.raises(TrainerError, match="the batch has no column 'old_logp': add it to `needs` of the algorithm"):
        batch.t("old_logp")
    later = batch.with_old_logp(torch.arange(5.0, dtype=torch.float64, requires_grad=True))
    assert later.t("old_logp").dtype == torch.float32
    assert batch.old_logp is None
    with pytest.raises(ValueError, match=r"old_logp has shape \(4,\) for 5 tokens"):
        batch.with_old_logp(torch.zeros(4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": [1, 1]}, r"mask: 2 values for 3 \(response\)"),
        ({"reward": [1.0]}, r"reward: 1 values for 2 \(sample\)"),
        ({"tokens": np.arange(9)}, r"tokens: 9 values for 5 \(token\)"),
        ({"extra": {"x": ("response", [1])}}, r"x: 1 values for 3 \(response\)"),
        ({"extra": {"x": ("row", [1])}}, r"extra fields \['x'\] have a reserved name or an axis not in"),
        ({"extra": {"reward": ("sample", [1, 2])}}, r"extra fields \['reward'\] have a reserved name"),
        ({"extra": {"old_logp": ("response", [1, 2, 3])}}, "have a reserved name"),
        ({"colour": [1, 2]}, r"unknown fields \['colour'\]"),
        ({"total_lengths": [1, 4]}, "negative or larger than its total_length"),
    ],
)
def test_wrong_columns_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_batch([[1, 0], [1]], **change)


def test_a_missing_column_is_refused() -> None:
    columns = {name: getattr(example(), name) for name in SCHEMA if name != "group"}
    with pytest.raises(ValueError, match=r"missing fields \['group'\]"):
        StepBatch.of(**columns)
