"""Packing: what goes in comes out at its place, whatever the context-parallel size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vime_core.training.packed import pack

LENGTHS = [5, 3, 16, 1, 9, 12]
RESPONSES = [3, 2, 15, 0, 9 - 4, 1]


def _tokens() -> list[np.ndarray]:
    return [np.arange(100 * n, 100 * n + length) for n, length in enumerate(LENGTHS)]


def _expected() -> np.ndarray:
    return np.concatenate([ids[len(ids) - r :] for ids, r in zip(_tokens(), RESPONSES, strict=True)])


@pytest.mark.parametrize("cp_size", [1, 2, 4])
@pytest.mark.parametrize("multiple", [1, 8])
def test_every_response_token_is_predicted_once_by_the_token_before_it(cp_size: int, multiple: int) -> None:
    total = torch.zeros(sum(RESPONSES), dtype=torch.int64)
    lengths = set()
    for rank in range(cp_size):
        batch = pack(_tokens(), RESPONSES, cp_rank=rank, cp_size=cp_size, pad_multiple=multiple)
        lengths.add(batch.input_ids.shape[1])
        assert batch.response_tokens == sum(RESPONSES)
        total += batch.scatter(batch.targets)
        # Ids count up inside a sample, so the predicting row holds target - 1.
        assert torch.equal(batch.input_ids[0, batch.rows], batch.targets - 1)
        assert torch.equal(batch.sample_index, batch.targets // 100)
        assert torch.equal(batch.position_ids[0, batch.rows] + 1, batch.targets % 100)
        assert torch.equal(batch.response_index, batch.response_index.sort().values)
        assert torch.equal(batch.local(torch.from_numpy(_expected())), batch.targets)
    assert total.tolist() == _expected().tolist()
    assert len(lengths) == 1
    assert lengths.pop() * cp_size % multiple == 0


def test_without_context_parallelism_the_order_is_the_response_order() -> None:
    batch = pack(_tokens(), RESPONSES)
    assert batch.response_index.tolist() == list(range(sum(RESPONSES)))
    assert batch.params.cu_seqlens_q.tolist() == [0, 5, 8, 24, 25, 34, 46]


def test_context_ranks_share_every_sequence_in_zigzag() -> None:
    ids = [np.arange(8)]
    shares = [pack(ids, [1], cp_rank=rank, cp_size=2).input_ids[0].tolist() for rank in range(2)]
    assert shares == [[0, 1, 6, 7], [2, 3, 4, 5]]


@pytest.mark.parametrize(("tokens", "responses"), [([], []), ([np.arange(3)], [3]), ([np.arange(3)], [1, 1])])
def test_what_cannot_be_predicted_is_refused(tokens: list[np.ndarray], responses: list[int]) -> None:
    with pytest.raises(ValueError, match="pack"):
        pack(tokens, responses)
