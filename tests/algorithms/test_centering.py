"""Score centering: golden gradients, a mean of zero under the sampler, and its place in the loss."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.algorithms.centering import ImportanceWeight, TopkLogprobs, centered_loss
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.loss_config import LossConfig
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import prepare_step
from vime_core.api.errors import TrainerError
from vime_core.api.streams import TOP_IDS, TOP_LOGP
from vime_core.batch.step_batch import StepBatch
from vime_core.config.resolution import resolve
from vime_core.training.logprobs import ChunkedSoftmax, VocabShard, token_logprobs

Golden = dict[str, Any]
WEIGHTS = {
    "none": ImportanceWeight(),
    "tis": ImportanceWeight("truncate", 0.0, 2.0),
    "mis": ImportanceWeight("mask", 0.5, 2.0),
}


@pytest.fixture(scope="module")
def table() -> Golden:
    return json.loads((Path(__file__).parent / "data" / "golden_centring.json").read_text())


def loss_and_gradient(
    table: Golden, heads: torch.Tensor, weight: ImportanceWeight, advantage: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """([4] losses, [4, 7] gradients of the logits) with ``heads`` [4, k] as the sampler's likeliest tokens."""
    logits = torch.tensor(table["logits"], dtype=torch.float64, requires_grad=True)
    logp, sampler = logits.log_softmax(1), torch.tensor(table["q_logits"], dtype=torch.float64).log_softmax(1)
    own = torch.tensor(table["targets"])[:, None]
    loss = centered_loss(
        TopkLogprobs(logp.gather(1, own)[:, 0], logp.gather(1, heads)),
        TopkLogprobs(sampler.gather(1, own)[:, 0], sampler.gather(1, heads)),
        advantage,
        weight,
    )
    loss.sum().backward()
    assert logits.grad is not None
    return loss.detach(), logits.grad


@pytest.mark.parametrize("name", WEIGHTS)
def test_over_the_head_and_the_rest(table: Golden, name: str) -> None:
    heads = torch.tensor(table["heads_top4_of_q"])
    advantage = torch.tensor(table["advantages"], dtype=torch.float64)
    loss, gradient = loss_and_gradient(table, heads, WEIGHTS[name], advantage)
    want = table["head"][name]
    torch.testing.assert_close(gradient, torch.tensor(want["grad_logits"], dtype=torch.float64), atol=2e-9, rtol=0)
    torch.testing.assert_close(loss, torch.tensor(want["loss"], dtype=torch.float64), atol=2e-9, rtol=0)


@pytest.mark.parametrize("name", WEIGHTS)
def test_over_the_whole_vocabulary(table: Golden, name: str) -> None:
    """What rounding leaves of the rest counts as 1e-6 of either side, which does not show."""
    everything = torch.arange(7).expand(4, 7)
    advantage = torch.tensor(table["advantages"], dtype=torch.float64)
    _, gradient = loss_and_gradient(table, everything, WEIGHTS[name], advantage)
    want = torch.tensor(table["grad_full_vocabulary"][name], dtype=torch.float64)
    torch.testing.assert_close(gradient, want, atol=5e-6, rtol=0)


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_mean_under_the_sampler_is_zero(table: Golden, name: str) -> None:
    """Over the whole vocabulary, whatever the advantage of a place: a constant reward moves nothing."""
    sampler = torch.tensor(table["q_logits"], dtype=torch.float64).softmax(1)
    everything, one = torch.arange(7).expand(4, 7), torch.ones(4, dtype=torch.float64)
    total = torch.zeros(4, 7, dtype=torch.float64)
    for token in range(7):
        given = {**table, "targets": [token] * 4}
        total += sampler[:, token, None] * loss_and_gradient(given, everything, WEIGHTS[name], one)[1]
    assert float(total.abs().max()) < 1e-5


def test_a_token_that_the_sampler_rules_out_weighs_nothing() -> None:
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    sampler = torch.tensor([[-0.1, -math.inf]])
    policy, given = TopkLogprobs(torch.tensor([-1.0]), logp), TopkLogprobs(torch.tensor([-0.1]), sampler)
    loss = centered_loss(policy, given, torch.ones(1), WEIGHTS["tis"])
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert logp.grad is not None
    assert torch.isfinite(logp.grad).all()


# in the loss -----------------------------------------------------------------------------------------------------
def batch_of(table: Golden) -> StepBatch:
    """Two samples of two tokens, and one token under the mask of which nothing is known."""
    sampler = torch.tensor(table["q_logits"]).log_softmax(1)
    heads, own = torch.tensor(table["heads_top4_of_q"]), torch.tensor(table["targets"])[:, None]
    nothing = torch.full((1, 4), math.nan)
    top = torch.cat([sampler.gather(1, heads), nothing])
    return small_batch(
        [[1, 1], [1, 1, 0]],
        reward=[1.0, 0.0],
        group=[0, 0],
        rollout_logp=[*sampler.gather(1, own)[:, 0].tolist(), math.nan],
        extra={
            TOP_IDS.name: ("response", torch.cat([heads, heads[:1]]).numpy()),
            TOP_LOGP.name: ("response", top.numpy()),
        },
    )


def terms_of(flags: str) -> LossConfig:
    return LossConfig.of(resolve(["--pg-loss-type", "reinforce", *flags.split()], {}).stages[0].config)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("", "none"),
        ("--use-tis --tis-clip 2.0", "tis"),
        ('--correction icepop --correction-options {"low":0.5,"high":2.0}', "mis"),
    ],
)
def test_in_the_loss_of_any_algorithm(table: Golden, flags: str, name: str) -> None:
    loss_config = terms_of(f"--use-score-centering --score-centering-top-k 4 {flags}")
    assert loss_config.correction is None  # it is inside
    batch, options = batch_of(table), merge_options(Grpo(), {})
    prepared = prepare_step(Objective(Grpo(), options, "sample_mean", loss_config=loss_config), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight(range(2)), range(2))
    logits = torch.tensor([*table["logits"], table["logits"][0]], requires_grad=True)
    own, heads = torch.tensor([*table["targets"], 0]), batch.t(TOP_IDS.name).long()
    named, _ = token_logprobs(
        logits, torch.eye(7), torch.cat([own[:, None], heads], 1), VocabShard(0, 7), ChunkedSoftmax(1.0, 2)
    )
    loss, _ = micro_loss(
        Objective(Grpo(), options, loss_config=loss_config),
        share.view(named[:, 0]),
        TokenColumns(share.advantage, share.weight, topk_logprobs=named[:, 1:]),
    )
    loss.backward()
    scale = (prepared.advantage * prepared.weight(range(2)))[:4].double()
    heads4 = torch.tensor(table["heads_top4_of_q"])
    _, want = loss_and_gradient(table, heads4, WEIGHTS[name], scale)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[:4].double(), want, atol=2e-6, rtol=0)
    assert not logits.grad[4].any()


def test_without_the_log_probs_it_says_so(table: Golden) -> None:
    loss_config = terms_of("--use-score-centering --score-centering-top-k 4")
    batch, options = batch_of(table), merge_options(Grpo(), {})
    prepared = prepare_step(Objective(Grpo(), options, "sample_mean", loss_config=loss_config), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight(range(2)), range(2))
    with pytest.raises(TrainerError, match="no log-probs of the sampler's likeliest tokens"):
        micro_loss(
            Objective(Grpo(), options, loss_config=loss_config),
            share.view(torch.zeros(5)),
            TokenColumns(share.advantage, share.weight),
        )
    with pytest.raises(TrainerError, match="needs rollout_top_ids, rollout_top_logp"):
        prepare_step(Objective(Grpo(), options, "sample_mean", loss_config=loss_config), small_batch([[1]]))


def test_a_plain_gradient_has_no_ratio(table: Golden) -> None:
    batch, options, loss_config = batch_of(table), merge_options(Grpo(), {}), terms_of("")
    prepared = prepare_step(Objective(Grpo(), options, "sample_mean", loss_config=loss_config), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight(range(2)), range(2))
    share = replace(share, old_logp=torch.full((5,), -9.0))
    logp = torch.full((5,), -1.0, requires_grad=True)
    loss, metrics = micro_loss(
        Objective(Grpo(), options, loss_config=loss_config),
        share.view(logp),
        TokenColumns(share.advantage, share.weight),
    )
    loss.backward()
    want = -prepared.advantage.double() * prepared.weight(range(2))
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad.double(), want, atol=1e-6, rtol=0)
    assert "pg_clipfrac" not in metrics
