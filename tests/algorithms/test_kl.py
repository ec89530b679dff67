"""The KL estimators: values, gradients, and above all the gradient that is expected over a whole distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vime_core.algorithms.kl import KINDS, kl_estimate, kl_loss

Golden = dict[str, Any]


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.clone().requires_grad_()


def slope(total: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(total, of)[0]


def expected_slope(golden_loss: Golden, kind: str, *, unbiased: bool, old: torch.Tensor | None = None) -> torch.Tensor:
    """[V] gradient in the logits of the loss, averaged over every token the (old) policy could draw."""
    logits = leaf(torch.tensor(golden_loss["inputs"]["logits"][0], dtype=torch.float64))
    reference = torch.log_softmax(torch.tensor(golden_loss["inputs"]["q_logits"][0], dtype=torch.float64), 0)
    logp = torch.log_softmax(logits, 0)
    sampled_from = logp.detach() if old is None else old
    loss = kl_loss(logp, reference, sampled_from, kind, unbiased=unbiased)
    return slope((sampled_from.exp() * loss).sum(), logits)


@pytest.mark.parametrize("kind", KINDS)
def test_values(golden_loss: Golden, kind: str) -> None:
    inputs = golden_loss["inputs"]["A"]
    got = kl_estimate(flat(inputs["logp"]) - flat(inputs["ref_logp"]), kind)
    torch.testing.assert_close(got, flat(golden_loss["kl"][kind]), atol=1e-8, rtol=0)


@pytest.mark.parametrize(("name", "kind", "unbiased"), [("k1", "k1", False), ("k2", "k2", False), ("k3", "k3", False)])
def test_token_gradients(golden_loss: Golden, name: str, kind: str, unbiased: bool) -> None:
    inputs = golden_loss["inputs"]["A"]
    logp = leaf(flat(inputs["logp"]))
    loss = kl_loss(logp, flat(inputs["ref_logp"]), flat(inputs["old_logp"]), kind, unbiased=unbiased)
    torch.testing.assert_close(slope(loss.sum(), logp), flat(golden_loss["kl"]["grad"][name]), atol=1e-8, rtol=0)


def test_k3_times_the_ratio(golden_loss: Golden) -> None:
    inputs = golden_loss["inputs"]["A"]
    columns = (flat(inputs[name]) for name in ("logp", "ref_logp", "old_logp"))
    got = kl_loss(*columns, "k3", unbiased=True)
    torch.testing.assert_close(got, flat(golden_loss["kl"]["k3_times_ratio"]), atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("kind", "unbiased", "name"),
    [
        ("k1", False, "k1"),
        ("k2", False, "reverse_kl(policy||ref)"),
        ("k3", False, "forward_kl(ref||policy)"),
        ("k1", True, "reverse_kl(policy||ref)"),
        ("k2", True, "reverse_kl(policy||ref)"),
        ("k3", True, "k3_times_ratio"),
        ("low_var_kl", True, "reverse_kl(policy||ref)"),
    ],
)
def test_expected_gradient(golden_loss: Golden, kind: str, unbiased: bool, name: str) -> None:
    """What a loss really minimises. Nothing at all with k1."""
    want = torch.tensor(golden_loss["kl_expected_gradient"][name], dtype=torch.float64)
    got = expected_slope(golden_loss, kind, unbiased=unbiased)
    torch.testing.assert_close(got, want, atol=1e-8, rtol=0)
    assert bool((got.abs() < 1e-12).all()) == (name == "k1")


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_unbiased_means_it_off_policy_too(golden_loss: Golden, kind: str) -> None:
    """Tokens drawn from another policy, whose log-probs are the old ones."""
    other = torch.log_softmax(torch.linspace(-1, 1, 7, dtype=torch.float64), 0)
    want = torch.tensor(golden_loss["kl_expected_gradient"]["reverse_kl(policy||ref)"], dtype=torch.float64)
    got = expected_slope(golden_loss, kind, unbiased=True, old=other)
    torch.testing.assert_close(got, want, atol=1e-8, rtol=0)
    assert (expected_slope(golden_loss, kind, unbiased=False, old=other) - want).abs().max() > 0.01


def test_far_away_tokens_are_bounded(golden_loss: Golden) -> None:
    """low_var_kl stops at 10; k3 stays finite in float32, value and gradient."""
    d = leaf(torch.tensor(golden_loss["kl"]["extreme_logp_minus_ref"], dtype=torch.float64))
    got = kl_estimate(d, "low_var_kl")
    want = torch.tensor(golden_loss["kl"]["extreme_low_var_kl"], dtype=torch.float64)
    torch.testing.assert_close(got.detach(), want, atol=1e-8, rtol=0)
    moves = [abs(x) < 10 for x in want.tolist()]
    assert [bool(g) or x == 0 for g, x in zip(slope(got.sum(), d), want.tolist())] == moves
    far = leaf(torch.tensor([-100.0, 100.0]))
    k3 = kl_estimate(far, "k3")
    assert torch.isfinite(k3).all()
    assert slope(k3.sum(), far).tolist() == [0.0, 1.0]


def test_k3_of_a_tiny_ratio_is_not_rounding() -> None:
    assert kl_estimate(torch.tensor([1e-3]), "k3").item() == pytest.approx(5e-7, rel=1e-3)


def test_an_unknown_estimator_names_the_known() -> None:
    with pytest.raises(ValueError, match="'k4' is unknown; there are k1, abs, k2, k3, low_var_kl"):
        kl_estimate(torch.zeros(1), "k4")
