"""Mistakes that other systems shipped, each with the right value and the wrong one that must not come back.

The number of a report is in the test's name. Here: credit, returns, whitening, surrogates, the critic, aggregation; the
others are beside what they are about.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from vime_testing.toy_step import Case, Subject, small_batch, zigzag

from vime_core.algorithms.common import bounded_exp, clipped_loss, group_stats, whiten
from vime_core.algorithms.critic_loss import value_loss
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.gspo import Gspo
from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.ppo import Ppo
from vime_core.algorithms.prepare import prepare_step
from vime_core.algorithms.reinforce import ReinforcePlusPlus
from vime_core.algorithms.returns import Discount, discounted, gae, kl_penalty, token_rewards
from vime_core.api.errors import ConfigError

Report = dict[str, Any]
STD = merge_options(Grpo(), {})
NO_STD = merge_options(Grpo(), {"disable_grpo_std_normalization": True})


def report(number: str) -> pytest.MarkDecorator:
    """The test is about this report, which the fixture ``case`` holds."""
    return pytest.mark.parametrize("case", [number], indirect=True)


def advantages(reward: list[float], group: list[int], options: Any, **columns: Any) -> list[float]:
    batch = small_batch([[1]] * len(reward), reward=reward, group=group, **columns)
    return Grpo().advantages(batch, options).tolist()


def weights(name: str, masks: list[list[int]], **columns: Any) -> torch.Tensor:
    batch = small_batch(masks, **columns)
    return prepare_step(Objective(Grpo(), STD, name, fixed_length=8), batch).weight(range(len(masks)))


def axis(mask: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(mask, seg) of one sample."""
    return torch.tensor(mask).bool(), torch.zeros(len(mask), dtype=torch.int64)


# groups ----------------------------------------------------------------------------------------------------------
@report("G1")
def test_groups_of_unequal_size(case: Report) -> None:
    assert advantages(case["inputs"]["rewards"], case["inputs"]["groups"], NO_STD) == case["right"] != case["wrong"]


@report("G2")
def test_a_group_of_one_borrows_nothing(case: Report) -> None:
    got = advantages(case["inputs"]["rewards"], case["inputs"]["groups"], STD)
    assert got == pytest.approx(case["right"], abs=1e-6)
    assert got[2] == 0.0


@report("G9")
def test_a_group_of_one_does_not_keep_its_reward(case: Report) -> None:
    assert advantages(case["inputs"]["rewards"], case["inputs"]["groups"], STD) == case["right"]


@report("G3")
def test_a_rollout_that_fans_out_has_one_vote(case: Report) -> None:
    got = advantages(case["inputs"]["rewards"], case["inputs"]["group"], NO_STD, rollout=case["inputs"]["rollout_ids"])
    assert got == pytest.approx(case["right"], abs=1e-7)


@report("G6")
def test_statistics_come_before_the_selection(case: Report) -> None:
    """Truncated samples are left out of the loss, not out of their group's baseline."""

    class DropsTruncated(Grpo):
        def select(self, batch: Any, options: Any) -> torch.Tensor:
            return ~batch.t("truncated")

    inputs = case["inputs"]
    cut = [i in inputs["dropped"] for i in range(4)]
    batch = small_batch([[1]] * 4, reward=inputs["rewards"], group=inputs["group"], truncated=cut)
    prepared = prepare_step(Objective(DropsTruncated(), NO_STD, "sample_mean"), batch)
    assert prepared.advantage[prepared.mask].tolist() == case["right"]
    assert prepared.weight(range(4)).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


@report("G7")
def test_equal_values_have_no_spread(case: Report) -> None:
    values = torch.tensor(case["inputs"]["rewards"][1:], dtype=torch.float32).double()
    stats = group_stats(values, torch.zeros(len(values)), torch.arange(len(values)))
    assert stats.std.max() == case["right"]["std_of_others"]


@pytest.mark.parametrize("options", [STD, NO_STD])
@pytest.mark.parametrize("n", [2, 7, 8])
def test_equal_float32_rewards_give_exactly_zero(options: Any, n: int) -> None:
    tenth = float(torch.tensor(0.1, dtype=torch.float32))
    assert advantages([tenth] * n, [4] * n, options) == [0.0] * n


def test_a_reward_of_a_fully_masked_sample_still_votes() -> None:
    batch = small_batch([[1], [0, 0]], reward=[1.0, 3.0])
    assert Grpo().advantages(batch, NO_STD)[0] == -1.0


# returns, whitening, the critic ----------------------------------------------------------------------------------
@report("G5")
@pytest.mark.parametrize("last", [100.0, -7.0])
def test_what_is_suppressed_enters_no_statistic(case: Report, last: float) -> None:
    rows = torch.tensor([case["inputs"]["rewards"][0], [1.0, last]], dtype=torch.float64)
    kept = ~torch.tensor(case["inputs"]["suppressed"])[:, None].expand(2, 2)
    assert whiten(rows.flatten(), kept.flatten()).reshape(2, 2).tolist() == case["right"] != case["wrong"]
    suppressed = small_batch([[1, 1], [1, 1]], reward=[1.0, math.nan])
    assert not ReinforcePlusPlus().advantages(suppressed, merge_options(ReinforcePlusPlus(), {})).any()


@report("C1")
def test_kl_of_masked_tokens_is_in_no_return(case: Report) -> None:
    inputs = case["inputs"]
    old = torch.full((4,), -1.0)
    batch = small_batch([inputs["mask"]], reward=[inputs["reward"]]).with_old_logp(old)
    batch = batch.with_columns(ref_logp=old - torch.tensor(inputs["kl"]))
    rewards = token_rewards(batch, {"kl_coef": inputs["kl_coef"], "kl_estimator": "k1"})
    got = discounted(rewards, batch.t("mask"), batch.seg(), inputs["gamma"]).tolist()
    assert got == pytest.approx(case["right"]["decay_each_trainable_token"])
    assert got[0] != pytest.approx(case["wrong"][0])


@report("C2")
def test_an_observation_does_not_end_the_return(case: Report) -> None:
    inputs = case["inputs"]
    got = discounted(torch.tensor(inputs["token_rewards"]), *axis(inputs["mask"]), inputs["gamma"])
    assert got.tolist() == case["right"]


@report("C4")
def test_values_of_masked_tokens_bootstrap_nothing(case: Report) -> None:
    inputs = case["inputs"]
    reward, values = torch.tensor(inputs["token_rewards"]), torch.tensor(inputs["values"], dtype=torch.float64)
    advantage, returns = gae(reward, values, *axis(inputs["mask"]), Discount(inputs["gamma"], inputs["lam"]))
    assert advantage.tolist() == pytest.approx(case["right"])
    assert returns.tolist() == pytest.approx(case["right"])


@report("C5")
def test_the_terminal_reward_is_where_the_last_token_is(case: Report) -> None:
    """Advantages sees the whole batch, so it cannot ask a context rank for its last token; the pieces add up."""
    inputs = case["inputs"]
    length = inputs["response_length"]
    batch = small_batch([[1] * length], prompt=inputs["total_length"] - length, reward=[1.0])
    batch = batch.with_old_logp(torch.full((length,), -1.0)).with_columns(values=torch.zeros(length))
    held = zigzag(batch, [0], inputs["cp"])
    assert [length - 1 in rank for rank in held].index(True) == case["right"]["owner_rank"]
    subject = Subject(Ppo(), "sample_mean", {"gamma": 0.5})
    toy = Case(batch, torch.randn(length, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert subject.prepare(batch).advantage.tolist() == [0.25, 0.5, 1.0]
    whole, pieces = subject.run(toy), subject.run(toy, context=inputs["cp"])
    assert pieces.loss == pytest.approx(whole.loss, abs=1e-12)
    assert torch.allclose(pieces.grad, whole.grad, atol=1e-12, rtol=0)


@report("C6")
def test_whitening_over_all_ranks(case: Report) -> None:
    values = torch.tensor([*case["inputs"]["rank0"], *case["inputs"]["rank1"]], dtype=torch.float64)
    got = whiten(values, torch.ones(4, dtype=torch.bool))
    assert got.tolist() == pytest.approx(case["right"], abs=1e-6)


@pytest.mark.parametrize("value", [1000.1, 3.3, 0.1])
def test_equal_values_whiten_to_zero(value: float) -> None:
    same = torch.full((7,), value, dtype=torch.float32)
    assert not whiten(same, torch.ones(7, dtype=torch.bool)).any()
    assert not whiten(same[:1], torch.ones(1, dtype=torch.bool)).any()


@report("C8")
def test_each_sample_of_a_rollout_keeps_its_own_mask(case: Report) -> None:
    masks, adv = case["inputs"]["step_masks"], case["inputs"]["adv"]
    batch = small_batch([*masks, [1]], reward=[2 * adv, 2 * adv, 0.0], rollout=[0, 0, 1])
    prepared = prepare_step(Objective(Grpo(), NO_STD, "token_mean"), batch)
    assert prepared.advantage[:8].reshape(2, 4).tolist() == case["right"]


@report("C9")
def test_a_reward_kl_is_applied_or_refused(case: Report) -> None:
    inputs = case["inputs"]
    with pytest.raises(ConfigError, match=r"algorithm 'grpo' does not read kl_coef"):
        merge_options(Grpo(), {"kl_coef": inputs["kl_coef"]})
    old = torch.full((2,), -1.0)
    batch = small_batch([[1, 1]]).with_old_logp(old).with_columns(ref_logp=old - torch.tensor(inputs["kl"]))
    options = {"kl_coef": inputs["kl_coef"], "kl_estimator": "k1"}
    got = inputs["group_adv"] - kl_penalty(batch, batch.t("mask"), options)
    assert got.tolist() == pytest.approx(case["right"])


@report("C10")
def test_the_logged_kl_is_not_the_reward(case: Report) -> None:
    inputs = case["inputs"]
    old = torch.full((2,), -1.0)
    columns = {"ref_logp": old - torch.tensor(inputs["kl"]), "values": torch.zeros(2)}
    batch = small_batch([[1, 1]], reward=[inputs["reward"]]).with_old_logp(old).with_columns(**columns)
    prepared = prepare_step(Objective(Ppo(), merge_options(Ppo(), {"kl_coef": inputs["kl_coef"]}), "token_mean"), batch)
    assert prepared.metrics["reward_kl"] == pytest.approx(case["right"]["logged_kl"])
    assert prepared.advantage.tolist() == pytest.approx([0.85, 0.9])


@report("A14")
def test_the_critics_clip_is_measured_before_it_clips(case: Report) -> None:
    inputs = {name: torch.tensor(x, dtype=torch.float64) for name, x in case["inputs"].items()}
    got = value_loss(inputs["new"], inputs["old"], torch.zeros(2), float(inputs["clip"]))
    assert float(got.clipped.double().mean()) == case["right"]


@report("A4")
def test_the_critics_loss_counts_the_step_and_not_the_micro_batch(case: Report) -> None:
    """The report's system halves the square; ours does not."""
    errors = case["inputs"]["microbatches_squared_error"]
    w = weights("token_mean", [[1] * len(part) for part in errors])
    values = torch.tensor([float(x) for part in errors for x in part]).sqrt()
    loss = value_loss(values, values, torch.zeros_like(values), 0.2).loss
    assert float((w * loss).sum()) / 2 == pytest.approx(case["right"])


# surrogates ------------------------------------------------------------------------------------------------------
@report("R10")
def test_a_log_ratio_of_100(case: Report) -> None:
    logp = torch.tensor([float(case["inputs"]["log_ratio"])], requires_grad=True)
    clipped = clipped_loss(bounded_exp(logp), torch.tensor([-1.0]), 0.2, 0.2, case["inputs"]["dual_clip"])
    clipped.loss.sum().backward()
    assert (clipped.loss.item(), logp.grad) == (case["right"]["loss"], torch.tensor([case["right"]["grad"]]))


def gspo_loss(masks: list[list[int]], advantage: list[float]) -> float:
    """At ratio 1, with GSPO's own aggregation."""
    batch = small_batch(masks)
    options = merge_options(Gspo(), {})
    prepared = prepare_step(Objective(Gspo(), options, Gspo.aggregate), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight(range(len(masks))), range(len(masks)))
    view = share.view(torch.full((batch.response_tokens,), -1.0))
    return float(micro_loss(Objective(Gspo(), options), view, TokenColumns(torch.tensor(advantage), share.weight))[0])


@report("R12")
def test_a_sequences_advantage_is_not_averaged_over_padding(case: Report) -> None:
    assert gspo_loss([case["inputs"]["mask"]], case["inputs"]["adv"]) == pytest.approx(case["right"]["loss"])


@report("A7")
def test_gspo_averages_sequences_and_not_tokens(case: Report) -> None:
    lengths = case["inputs"]["lengths"]
    advantage = [-float(x) for x, n in zip(case["inputs"]["sequence_loss"], lengths) for _ in range(n)]
    assert gspo_loss([[1] * n for n in lengths], advantage) == pytest.approx(case["right"], abs=1e-6)


# aggregation -----------------------------------------------------------------------------------------------------
@report("A2")
def test_parts_add_up_to_a_token_mean(case: Report) -> None:
    parts = case["inputs"]["parts"]
    w = weights("token_mean", [[1] * part["tokens"] for part in parts])
    loss = torch.cat([torch.full((part["tokens"],), part["mean"]) for part in parts])
    assert float((w * loss).sum()) == pytest.approx(case["right"], abs=1e-6)


@report("A3")
def test_fixed_length_divides_by_samples(case: Report) -> None:
    assert float(weights("fixed_length", [[1] * 4, [1] * 8]).sum()) == pytest.approx(case["right"])


@report("A6")
def test_unselected_tokens_leave_the_denominator(case: Report) -> None:
    class KeepsFirst(Grpo):
        def select(self, batch: Any, options: Any) -> torch.Tensor:
            return torch.tensor([True, False])

    prepared = prepare_step(Objective(KeepsFirst(), STD, "token_mean"), small_batch([[1] * 3, [1] * 5]))
    assert float(prepared.weight([0, 1]).sum()) == pytest.approx(case["right"])


@report("A8")
def test_only_trainable_tokens_are_in_the_numerator(case: Report) -> None:
    w = weights("token_mean", case["inputs"]["mask"])
    assert w.reshape(2, 2).tolist() == case["right"]["grad"]


@report("A10")
def test_an_empty_sample_is_no_token(case: Report) -> None:
    assert float(weights("token_mean", case["inputs"]["masks"]).sum()) == pytest.approx(case["right"])


@report("A11")
def test_the_two_sample_means_have_two_names(case: Report) -> None:
    loss, mask = torch.tensor(case["inputs"]["loss"]).flatten(), case["inputs"]["mask"]
    right = case["right"]
    assert float((weights("sample_mean", mask) * loss).sum()) == right["over_all_samples"]
    assert float((weights("sample_mean_nonempty", mask) * loss).sum()) == right["over_nonempty"]


@report("A12")
def test_a_split_rollout_weighs_once(case: Report) -> None:
    inputs = case["inputs"]
    masks = [[1] * len(row) for row in inputs["loss"]]
    loss = torch.tensor([x for row in inputs["loss"] for x in row])
    w = weights("rollout_mean", masks, rollout=inputs["rollout_ids"])
    assert float((w * loss).sum()) == pytest.approx(case["right"])


@report("A15")
def test_sample_mean_and_token_mean_differ_at_ratio_one(case: Report) -> None:
    inputs = case["inputs"]
    masks = [[1] * n for n in inputs["lengths"]]
    loss = torch.cat([torch.full((n,), -float(a)) for n, a in zip(inputs["lengths"], inputs["adv"])])
    for name, right in case["right"].items():
        assert float((weights(name, masks) * loss).sum()) == pytest.approx(right)


@report("A16")
def test_context_ranks_add_sums(case: Report) -> None:
    w = weights("token_mean", [[1] * sum(case["inputs"]["rank_tokens"])])
    loss = torch.tensor([2.0, 0.0, 0.0, 0.0])
    assert float((w * loss).sum()) == pytest.approx(case["right"])
