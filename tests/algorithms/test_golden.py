"""GRPO, its surrogate and the aggregations against numbers that several public implementations agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.algorithms.common import bounded_exp, clipped_loss, whiten
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.metrics import finish
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import prepare_step

Golden = dict[str, Any]
OPTIONS: dict[str, dict[str, Any]] = {
    "eps0.2": {},
    "eps0.2_0.28": {"eps_clip_high": 0.28},
    "eps0.2_0.28_c1.3": {"eps_clip_high": 0.28, "eps_clip_c": 1.3},
    "eps0.2_c3": {"eps_clip_c": 3.0},
}


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def batch_of(inputs: Golden, *, own_rollouts: bool = False) -> Any:
    n = len(inputs["masks"])
    return small_batch(
        inputs["masks"],
        reward=inputs["rewards"],
        group=inputs["groups"],
        rollout=list(range(n)) if own_rollouts else inputs["rollout_ids"],
    )


def close(got: torch.Tensor | float, want: torch.Tensor | float, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(want, dtype=torch.float64), atol=tolerance, rtol=0
    )


@pytest.mark.parametrize("own_rollouts", [True, False])
@pytest.mark.parametrize(("name", "off"), [("grpo_std", False), ("grpo_nostd", True)])
def test_group_advantages(golden: Golden, name: str, off: bool, own_rollouts: bool) -> None:
    inputs = golden["inputs"]["A"]
    batch = batch_of(inputs, own_rollouts=own_rollouts)
    options = merge_options(Grpo(), {"disable_grpo_std_normalization": off})
    want = torch.tensor(golden["group"][name])[batch.seg()]
    close(Grpo().advantages(batch, options), want)


def test_groups_that_teach_nothing_are_counted(golden: Golden) -> None:
    batch = batch_of(golden["inputs"]["A"])
    metrics = prepare_step(Objective(Grpo(), merge_options(Grpo(), {}), "token_mean"), batch).metrics
    shares = metrics["zero_std_groups"], metrics["groups_of_one"]
    assert shares == (1 / 3, 1 / 3)
    assert sum(shares) * 3 == golden["metrics"]["zero_std_groups"]


@pytest.mark.parametrize("name", OPTIONS)
def test_surrogate_token_by_token(golden: Golden, name: str) -> None:
    """The table's loss and gradient are unmasked: the shared formula, then the mask through the algorithm."""
    inputs, want = golden["inputs"]["A"], golden["ppo"][name]
    options = merge_options(Grpo(), OPTIONS[name])
    logp = flat(inputs["logp"]).requires_grad_()
    high = options["eps_clip"] if options["eps_clip_high"] is None else options["eps_clip_high"]
    ratio = bounded_exp(logp - flat(inputs["old_logp"]))
    clipped = clipped_loss(ratio, flat(inputs["adv_tok"]), options["eps_clip"], high, options["eps_clip_c"])
    clipped.loss.sum().backward()
    close(clipped.loss.detach(), flat(want["loss"]))
    assert logp.grad is not None
    close(logp.grad, flat(want["grad_logp"]))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("aggregation", ["sample_mean", "token_mean"])
def test_total_and_clip_fractions(golden: Golden, name: str, aggregation: str) -> None:
    inputs, want = golden["inputs"]["A"], golden["ppo"][name]
    options = merge_options(Grpo(), OPTIONS[name])
    batch = batch_of(inputs)
    prepared = prepare_step(Objective(Grpo(), options, aggregation), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight(range(len(batch))), range(len(batch)), dtype=torch.float64)
    share = replace(share, old_logp=flat(inputs["old_logp"]))
    loss, pairs = micro_loss(
        Objective(Grpo(), options),
        share.view(flat(inputs["logp"])),
        TokenColumns(flat(inputs["adv_tok"]), share.weight),
    )
    metrics = finish(pairs)
    close(loss, want[f"total_{aggregation}"])
    close(metrics["loss"], want[f"total_{aggregation}"])
    close(metrics["pg_clipfrac"], want["clipfrac_token"])
    close(metrics["pg_clipfrac_low"] + metrics["pg_clipfrac_high"], want["clipfrac_token"])
    close(metrics["ppo_kl"], golden["metrics"]["ppo_kl_token_mean"])
    if options["eps_clip_c"] is not None:
        close(metrics["pg_clipfrac_lower"], want["dual_clipfrac_token"])


@pytest.mark.parametrize(
    "name",
    [
        "token_mean",
        "sample_mean",
        "sample_mean_nonempty",
        "sample_sum_mean",
        "fixed_length",
        "rollout_mean",
        "prompt_mean",
    ],
)
def test_aggregations(golden: Golden, name: str) -> None:
    """Seven samples, one of them fully masked; rollout ids with siblings."""
    batch = batch_of(golden["inputs"]["B"])
    prepared = prepare_step(Objective(Grpo(), merge_options(Grpo(), {}), name, fixed_length=8), batch)
    loss = (prepared.weight(range(7)) * flat(golden["aggregate"]["loss"])).sum()
    close(loss, golden["aggregate"]["fixed_length_8" if name == "fixed_length" else name])
    assert int(prepared.mask.sum()) == golden["aggregate"]["tokens"]


def test_whitening(golden: Golden) -> None:
    masks = golden["inputs"]["A"]["masks"]
    got = whiten(flat(golden["whiten"]["unwhitened"]), flat(masks).bool())
    close(got, flat(golden["whiten"]["adv"]))


def test_a_sequence_ratio_written_with_the_views_reductions(golden: Golden) -> None:
    """GSPO in one line over seq_mean and spread: ratio, total and gradient."""
    inputs, want = golden["inputs"]["A"], golden["gspo"]
    batch = batch_of(inputs)
    prepared = prepare_step(Objective(Grpo(), merge_options(Grpo(), {}), "sample_mean"), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight(range(6)), range(6), dtype=torch.float64)
    share = replace(share, old_logp=flat(inputs["old_logp"]))
    logp = flat(inputs["logp"]).requires_grad_()
    view = share.view(logp)
    ratio = bounded_exp(view.seq_mean(view.logp - view.old_logp))
    advantage = torch.tensor(golden["adv_seq"], dtype=torch.float64)
    token_loss = clipped_loss(view.broadcast_to_tokens(ratio), view.broadcast_to_tokens(advantage), 0.2, 0.2).loss
    total = torch.where(share.mask, share.weight * token_loss, 0).sum()
    total.backward()
    assert logp.grad is not None
    close(ratio.detach(), torch.tensor(want["ratio"], dtype=torch.float64))
    close(total.detach(), want["total_sample_mean"])
    close(logp.grad, flat(want["grad_logp_of_total"]))
