"""Chunked log-probs against log_softmax in double precision, values and gradients."""

from __future__ import annotations

import pytest
import torch

from vime_core.training.logprobs import ChunkedSoftmax, VocabShard, token_logprobs

ROWS, HIDDEN, VOCAB = 13, 8, 21


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    rows = torch.randn(ROWS, HIDDEN, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, requires_grad=True)
    return rows, weight, torch.randint(VOCAB, (ROWS,))


def _reference(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple:
    log_p = (rows.double() @ weight.double().T / temperature).log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("chunk_size", [-1, 1, 5, 13, 100])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_values_and_gradients(temperature: float, chunk_size: int, with_entropy: bool) -> None:
    rows, weight, targets = _inputs()
    a, b = torch.randn(ROWS), torch.randn(ROWS)
    logp, entropy = token_logprobs(
        rows, weight, targets, VocabShard(0, VOCAB), ChunkedSoftmax(temperature, chunk_size, with_entropy)
    )
    loss = (a * logp).sum() + ((b * entropy).sum() if entropy is not None else 0.0)
    grads = torch.autograd.grad(loss, (rows, weight))
    right_logp, right_entropy = _reference(rows, weight, targets, temperature)
    right = (a * right_logp).sum() + ((b * right_entropy).sum() if with_entropy else 0.0)
    torch.testing.assert_close(logp.double(), right_logp, atol=3e-6, rtol=1e-6)
    assert (entropy is None) is not with_entropy
    if entropy is not None:
        torch.testing.assert_close(entropy.double(), right_entropy, atol=3e-6, rtol=1e-6)
    for ours, theirs in zip(grads, torch.autograd.grad(right, (rows, weight)), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("with_entropy", [True, False])
def test_several_tokens_of_each_row(with_entropy: bool) -> None:
    rows, weight, _ = _inputs()
    ids, pull = torch.randint(VOCAB, (ROWS, 4)), torch.randn(ROWS, 4)
    logp, entropy = token_logprobs(rows, weight, ids, VocabShard(0, VOCAB), ChunkedSoftmax(0.7, 5, with_entropy))
    right = (rows.double() @ weight.double().T / 0.7).log_softmax(-1)
    torch.testing.assert_close(logp.double(), right.gather(1, ids), atol=3e-6, rtol=1e-6)
    total, wanted = (pull * logp).sum(), (pull * right.gather(1, ids)).sum()
    if entropy is not None:
        total, wanted = total + entropy.sum(), wanted - (right.exp() * right).sum()
    for ours, theirs in zip(
        torch.autograd.grad(total, (rows, weight)), torch.autograd.grad(wanted, (rows, weight)), strict=True
    ):
        torch.testing.assert_close(ours.double(), theirs.double(), atol=2e-5, rtol=1e-5)
    empty, _ = token_logprobs(rows[:0], weight, ids[:0], VocabShard(0, VOCAB))
    assert empty.shape == (0, 4)


def test_padded_vocabulary_has_no_probability_and_no_gradient() -> None:
    rows, weight, _ = _inputs()
    targets = torch.randint(15, (ROWS,))
    padded = weight.detach().clone()
    padded[15:] += 50.0
    padded.requires_grad_()
    logp, entropy = token_logprobs(rows, padded, targets, VocabShard(0, 15), ChunkedSoftmax(1.0, 4, True))
    right, right_entropy = _reference(rows, weight[:15], targets, 1.0)
    torch.testing.assert_close(logp.double(), right, atol=3e-6, rtol=1e-6)
    assert entropy is not None
    torch.testing.assert_close(entropy.double(), right_entropy, atol=3e-6, rtol=1e-6)
    (logp.sum() + entropy.sum()).backward()
    assert padded.grad is not None
    assert padded.grad[15:].abs().max() == 0.0


def test_no_rows_still_reach_the_graph() -> None:
    rows, weight, targets = _inputs()
    logp, _ = token_logprobs(rows[:0], weight, targets[:0], VocabShard(0, VOCAB))
    logp.sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().max() == 0.0


def test_temperature_zero_is_refused() -> None:
    rows, weight, targets = _inputs()
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(rows, weight, targets, VocabShard(0, VOCAB), ChunkedSoftmax(0.0))
