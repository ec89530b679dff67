"""Mistakes that other systems shipped, each with the right value and the wrong one that must not come back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vime_core.algorithms.common import bounded_exp, clipped_loss, group_stats, whiten
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import prepare_step
from vime_core.errors import ConfigError
from vime_core.testing.toy_step import small_batch

Cases = dict[str, Any]
STD = merge_options(Grpo(), {})
NO_STD = merge_options(Grpo(), {"disable_grpo_std_normalization": True})


def advantages(reward: list[float], group: list[int], options: Any, **columns: Any) -> list[float]:
    batch = small_batch([[1]] * len(reward), reward=reward, group=group, **columns)
    return Grpo().credit(batch, options).tolist()


def weights(name: str, masks: list[list[int]], **columns: Any) -> torch.Tensor:
    batch = small_batch(masks, **columns)
    return prepare_step(Grpo(), STD, batch, name, fixed_length=8).weight(range(len(masks)))


def test_groups_of_unequal_size(cases: Cases) -> None:
    case = cases["G1"]
    assert advantages(case["inputs"]["rewards"], case["inputs"]["groups"], NO_STD) == case["right"] != case["wrong"]


def test_a_group_of_one_borrows_nothing(cases: Cases) -> None:
    case = cases["G2"]
    got = advantages(case["inputs"]["rewards"], case["inputs"]["groups"], STD)
    assert got == pytest.approx(case["right"], abs=1e-6)
    assert got[2] == 0.0


def test_a_group_of_one_does_not_keep_its_reward(cases: Cases) -> None:
    case = cases["G9"]
    assert advantages(case["inputs"]["rewards"], case["inputs"]["groups"], STD) == case["right"]


def test_a_rollout_that_fans_out_has_one_vote(cases: Cases) -> None:
    case = cases["G3"]
    got = advantages(case["inputs"]["rewards"], case["inputs"]["group"], NO_STD, rollout=case["inputs"]["rollout_ids"])
    assert got == pytest.approx(case["right"], abs=1e-7)


def test_statistics_come_before_the_selection(cases: Cases) -> None:
    """Truncated samples are left out of the loss, not out of their group's baseline."""

    class DropsTruncated(Grpo):
        def select(self, batch: Any, options: Any) -> torch.Tensor:
            return ~batch.t("truncated")

    case = cases["G6"]["inputs"]
    cut = [i in case["dropped"] for i in range(4)]
    batch = small_batch([[1]] * 4, reward=case["rewards"], group=case["group"], truncated=cut)
    prepared = prepare_step(DropsTruncated(), NO_STD, batch, "sample_mean")
    assert prepared.advantage[prepared.mask].tolist() == cases["G6"]["right"]
    assert prepared.weight(range(4)).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_equal_values_have_no_spread(cases: Cases) -> None:
    values = torch.tensor(cases["G7"]["inputs"]["rewards"][1:], dtype=torch.float32).double()
    stats = group_stats(values, torch.zeros(len(values)), torch.arange(len(values)))
    assert stats.std.max() == cases["G7"]["right"]["std_of_others"]


@pytest.mark.parametrize("options", [STD, NO_STD])
@pytest.mark.parametrize("n", [2, 7, 8])
def test_equal_float32_rewards_give_exactly_zero(options: Any, n: int) -> None:
    tenth = float(torch.tensor(0.1, dtype=torch.float32))
    assert advantages([tenth] * n, [4] * n, options) == [0.0] * n


def test_a_reward_of_a_fully_masked_sample_still_votes() -> None:
    batch = small_batch([[1], [0, 0]], reward=[1.0, 3.0])
    assert Grpo().credit(batch, NO_STD)[0] == -1.0


def test_a_log_ratio_of_100(cases: Cases) -> None:
    case = cases["R10"]
    logp = torch.tensor([float(case["inputs"]["log_ratio"])], requires_grad=True)
    clipped = clipped_loss(bounded_exp(logp), torch.tensor([-1.0]), 0.2, 0.2, case["inputs"]["dual_clip"])
    clipped.loss.sum().backward()
    assert (clipped.loss.item(), logp.grad) == (case["right"]["loss"], torch.tensor([case["right"]["grad"]]))


def test_an_option_nobody_reads_is_refused(cases: Cases) -> None:
    assert "--kl-coef is accepted with GRPO and silently ignored" in cases["C9"]["mistake"]
    with pytest.raises(ConfigError, match=r"algorithm 'grpo' does not read kl_coef"):
        merge_options(Grpo(), {"kl_coef": 0.5})


def test_whitening_over_all_ranks(cases: Cases) -> None:
    case = cases["C6"]
    values = torch.tensor([*case["inputs"]["rank0"], *case["inputs"]["rank1"]], dtype=torch.float64)
    got = whiten(values, torch.ones(4, dtype=torch.bool))
    assert got.tolist() == pytest.approx(case["right"], abs=1e-6)


# aggregation -----------------------------------------------------------------------------------------------------
def test_parts_add_up_to_a_token_mean(cases: Cases) -> None:
    case = cases["A2"]
    parts = case["inputs"]["parts"]
    w = weights("token_mean", [[1] * part["tokens"] for part in parts])
    loss = torch.cat([torch.full((part["tokens"],), part["mean"]) for part in parts])
    assert float((w * loss).sum()) == pytest.approx(case["right"], abs=1e-6)


def test_fixed_length_divides_by_samples(cases: Cases) -> None:
    w = weights("fixed_length", [[1] * 4, [1] * 8])
    assert float(w.sum()) == pytest.approx(cases["A3"]["right"])


def test_unselected_tokens_leave_the_denominator(cases: Cases) -> None:
    class KeepsFirst(Grpo):
        def select(self, batch: Any, options: Any) -> torch.Tensor:
            return torch.tensor([True, False])

    prepared = prepare_step(KeepsFirst(), STD, small_batch([[1] * 3, [1] * 5]), "token_mean")
    assert float(prepared.weight([0, 1]).sum()) == pytest.approx(cases["A6"]["right"])


def test_only_trainable_tokens_are_in_the_numerator(cases: Cases) -> None:
    case = cases["A8"]
    w = weights("token_mean", case["inputs"]["mask"])
    assert w.reshape(2, 2).tolist() == case["right"]["grad"]


def test_an_empty_sample_is_no_token(cases: Cases) -> None:
    assert float(weights("token_mean", cases["A10"]["inputs"]["masks"]).sum()) == pytest.approx(cases["A10"]["right"])


def test_the_two_sample_means_have_two_names(cases: Cases) -> None:
    loss, mask = torch.tensor(cases["A11"]["inputs"]["loss"]).flatten(), cases["A11"]["inputs"]["mask"]
    right = cases["A11"]["right"]
    assert float((weights("sample_mean", mask) * loss).sum()) == right["over_all_samples"]
    assert float((weights("sample_mean_nonempty", mask) * loss).sum()) == right["over_nonempty"]


def test_a_split_rollout_weighs_once(cases: Cases) -> None:
    inputs = cases["A12"]["inputs"]
    masks = [[1] * len(row) for row in inputs["loss"]]
    loss = torch.tensor([x for row in inputs["loss"] for x in row])
    w = weights("rollout_mean", masks, rollout=inputs["rollout_ids"])
    assert float((w * loss).sum()) == pytest.approx(cases["A12"]["right"])


def test_sample_mean_and_token_mean_differ_at_ratio_one(cases: Cases) -> None:
    inputs = cases["A15"]["inputs"]
    masks = [[1] * n for n in inputs["lengths"]]
    loss = torch.cat([torch.full((n,), -float(a)) for n, a in zip(inputs["lengths"], inputs["adv"])])
    for name, right in cases["A15"]["right"].items():
        assert float((weights(name, masks) * loss).sum()) == pytest.approx(right)


def test_context_ranks_add_sums(cases: Cases) -> None:
    inputs = cases["A16"]["inputs"]
    w = weights("token_mean", [[1] * sum(inputs["rank_tokens"])])
    loss = torch.tensor([2.0, 0.0, 0.0, 0.0])
    assert float((w * loss).sum()) == pytest.approx(cases["A16"]["right"])
