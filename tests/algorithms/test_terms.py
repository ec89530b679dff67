"""Terms around an algorithm: what flags ask for, what they need, and what they do to a step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from vime_testing.toy_step import Subject, random_case, small_batch

from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.importance import CORRECTIONS
from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.loss_config import NO_LOSS_CONFIG, LossConfig
from vime_core.algorithms.metrics import finish
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.opd import Opd
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import overlong_penalty, prepare_step
from vime_core.algorithms.reinforce import Reinforce, ReinforcePlusPlus
from vime_core.api.errors import TrainerError
from vime_core.batch.step_batch import StepBatch
from vime_core.config.sections import Config

Golden = dict[str, Any]
GRPO = merge_options(Grpo(), {})
NO_STD = merge_options(Grpo(), {"disable_grpo_std_normalization": True})


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def batch_of(inputs: Golden) -> StepBatch:
    batch = small_batch(
        inputs["masks"], reward=inputs["rewards"], group=inputs["groups"], rollout_logp=flat(inputs["rollout_logp"])
    )
    columns = {name: flat(inputs[name]).float() for name in ("ref_logp", "teacher_logp")}
    return batch.with_columns(**columns).with_old_logp(flat(inputs["old_logp"]))


class Given(Grpo):
    """Advantages that are written down."""

    def __init__(self, advantage: torch.Tensor) -> None:
        self.advantage = advantage

    def advantages(self, batch: Any, options: Any) -> torch.Tensor:
        return self.advantage


# from flags ------------------------------------------------------------------------------------------------------
def test_nothing_by_default() -> None:
    assert LossConfig.of(Config()) == NO_LOSS_CONFIG
    assert NO_LOSS_CONFIG.needs == frozenset()


@pytest.mark.parametrize(
    ("flags", "want", "needs"),
    [
        ({"use_kl_loss": True}, {"kl_loss_coef": 0.001}, {"ref_logp"}),
        (
            {"use_kl_loss": True, "kl_loss_coef": 0.5, "kl_loss_type": "k3", "use_unbiased_kl": True},
            {"kl_loss_coef": 0.5, "kl_loss_type": "k3", "use_unbiased_kl": True},
            {"ref_logp", "old_logp"},
        ),
        (
            {"use_tis": True, "tis_clip": 3.0},
            {"correction": "tis", "correction_options": {"low": 0.0, "high": 3.0}},
            {"rollout_logp", "old_logp"},
        ),
        (
            {"correction": "mis", "correction_options": {"veto": 0.1}},
            {"correction": "mis", "correction_options": {"veto": 0.1}},
            {"rollout_logp", "old_logp"},
        ),
        ({"use_opsm": True}, {"opsm_delta": 1e-4}, {"rollout_logp", "old_logp"}),
        ({"use_opd": True, "opd_kl_coef": 0.3}, {"opd_kl_coef": 0.3}, {"teacher_logp", "old_logp"}),
        ({"use_rollout_logprobs": True}, {"use_rollout_logprobs": True}, {"rollout_logp"}),
        ({"overlong_buffer_len": 4}, {"overlong_buffer_len": 4}, {"reward"}),
        ({"normalize_advantages": True}, {"normalize_advantages": True}, set()),
        ({"mask_truncated_samples": True}, {"mask_truncated_samples": True}, set()),
        ({"get_mismatch_metrics": True}, {"get_mismatch_metrics": True}, set()),
        ({"entropy_coef": 0.1}, {"entropy_coef": 0.1}, set()),
    ],
)
def test_what_flags_ask_for(flags: Golden, want: Golden, needs: set[str]) -> None:
    loss_config = LossConfig.of(Config().replace("algorithm", **flags))
    assert loss_config == replace(NO_LOSS_CONFIG, **want)
    assert loss_config.needs == needs
    assert Objective(Grpo(), GRPO, loss_config=loss_config).needs == Grpo.needs | needs


def test_a_supervised_stage_has_no_terms() -> None:
    config = Config().replace("algorithm", use_kl_loss=True, use_tis=True, entropy_coef=0.1)
    assert LossConfig.of(config.replace("train", loss_type="sft_loss")) == NO_LOSS_CONFIG


def test_when_old_log_probs_are_computed() -> None:
    once = {
        name: Objective(Grpo(), GRPO, loss_config=loss_config).wants_old_logp(1) for name, loss_config in TERMS.items()
    }
    assert {name for name, wanted in once.items() if wanted} == {"tis", "opsm", "teacher"}
    assert not Objective(Grpo(), GRPO, loss_config=LossConfig(use_rollout_logprobs=True)).wants_old_logp(2)
    unbiased = LossConfig(kl_loss_coef=0.1, use_unbiased_kl=True)
    options = merge_options(Reinforce(), {})
    assert [Objective(Reinforce(), options, loss_config=unbiased).wants_old_logp(n) for n in (1, 2)] == [False, True]
    assert not Objective(Reinforce(), options, loss_config=LossConfig(kl_loss_coef=0.1)).wants_old_logp(2)


TERMS = {
    "kl": LossConfig(kl_loss_coef=0.1),
    "whitened": LossConfig(normalize_advantages=True),
    "tis": LossConfig(correction="tis"),
    "opsm": LossConfig(opsm_delta=0.1),
    "teacher": LossConfig(opd_kl_coef=0.1),
    "sampler": LossConfig(use_rollout_logprobs=True),
    "overlong": LossConfig(overlong_buffer_len=2, max_response_len=8),
}


# rewards ---------------------------------------------------------------------------------------------------------
def test_overlong_penalty(golden_loss: Golden) -> None:
    lengths = torch.tensor([4, 8, 10, 16, 20])
    got = overlong_penalty(lengths, 16, 8)
    *within, beyond = golden_loss["overlong_penalty_len10_max16_buf8"]
    assert got.tolist() == [*within, -1.0]  # the formula alone goes on beyond the limit
    assert beyond == -1.5
    assert overlong_penalty(lengths, 16, 8, 0.5).tolist() == [x / 2 for x in got.tolist()]


def test_the_penalty_is_in_the_reward_before_the_baseline() -> None:
    """Rewards 1 and 1; the second is at the limit of 4 and loses 0.5."""
    loss_config = LossConfig(overlong_buffer_len=2, overlong_penalty_factor=0.5, max_response_len=4)
    batch = small_batch([[1], [1] * 4], reward=[1.0, 1.0])
    prepared = prepare_step(Objective(Grpo(), NO_STD, "token_mean", loss_config=loss_config), batch)
    assert prepared.advantage.tolist() == [0.25, -0.25, -0.25, -0.25, -0.25]
    assert prepared.metrics["overlong_penalty"] == -0.25
    assert prepared.metrics["zero_std_groups"] == 0.0
    assert batch.reward.tolist() == [1.0, 1.0]


def test_an_unscored_sample_stays_unscored() -> None:
    loss_config = LossConfig(overlong_buffer_len=2, max_response_len=4)
    batch = small_batch([[1] * 4, [1], [1]], reward=[math.nan, 1.0, 0.0])
    prepared = prepare_step(Objective(Grpo(), NO_STD, "token_mean", loss_config=loss_config), batch)
    assert prepared.metrics["unselected_samples"] == 1
    assert prepared.metrics["overlong_penalty"] == 0.0


def test_masked_truncated_samples_keep_their_reward_in_the_baseline() -> None:
    batch = small_batch([[1]] * 4, reward=[1.0, 0.0, 1.0, 0.0], truncated=[0, 0, 0, 1])
    prepared = prepare_step(
        Objective(Grpo(), NO_STD, "sample_mean", loss_config=LossConfig(mask_truncated_samples=True)), batch
    )
    assert prepared.advantage.tolist() == [0.5, -0.5, 0.5, 0.0]
    assert prepared.weight(range(4)).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


# old log-probs ---------------------------------------------------------------------------------------------------
def test_the_sampler_stands_for_the_old_policy() -> None:
    batch = small_batch([[1, 0, 1]], rollout_logp=[-1.0, math.nan, -2.0])
    prepared = prepare_step(
        Objective(Grpo(), GRPO, "token_mean", loss_config=LossConfig(use_rollout_logprobs=True)), batch
    )
    share = MicroBatchSlice.of(prepared, prepared.weight([0]), [0])
    assert share.view(torch.zeros(3)).old_logp.tolist() == [-1.0, 0.0, -2.0]


def test_without_its_log_probs_the_sampler_stands_for_nobody() -> None:
    batch = small_batch([[1, 1], [1]], rollout_logp=[-1.0, -1.0, math.nan])
    with pytest.raises(TrainerError, match=r"use_rollout_logprobs needs rollout_logp.* at 1 of 3 .* in sample 1"):
        prepare_step(Objective(Grpo(), GRPO, "token_mean", loss_config=LossConfig(use_rollout_logprobs=True)), batch)


# advantages ------------------------------------------------------------------------------------------------------
def test_whitening_is_over_what_counts() -> None:
    batch = small_batch([[1, 0], [1], [1]], truncated=[0, 0, 1])
    algorithm = Given(torch.tensor([1.0, 50.0, 3.0, 99.0]))
    loss_config = LossConfig(normalize_advantages=True, mask_truncated_samples=True)
    got = prepare_step(Objective(algorithm, GRPO, "token_mean", loss_config=loss_config), batch).advantage
    assert got.tolist() == pytest.approx([-math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0], abs=1e-6)


def test_whitening_twice_is_whitening_once() -> None:
    case = random_case(3, frozenset({"old_logp"}))
    subject = Subject(ReinforcePlusPlus(), "token_mean")
    once = subject.prepare(case.batch).advantage
    twice = replace(subject, loss_config=LossConfig(normalize_advantages=True)).prepare(case.batch).advantage
    torch.testing.assert_close(once, twice, atol=1e-6, rtol=0)


def test_distillation(golden_loss: Golden) -> None:
    inputs, want = golden_loss["inputs"]["A"], golden_loss["opd"]
    batch = batch_of(inputs)
    algorithm = Given(flat(inputs["adv_tok"]).float())
    prepared = prepare_step(Objective(algorithm, GRPO, "token_mean", loss_config=LossConfig(opd_kl_coef=1.0)), batch)
    mask = batch.t("mask")
    torch.testing.assert_close(
        prepared.advantage[mask].double(), flat(want["adv_coef1_on_adv_tok"])[mask], atol=1e-6, rtol=0
    )
    assert prepared.metrics["opd_reverse_kl"] == pytest.approx(want["mean_token"], abs=1e-6)


def test_distillation_by_its_own_algorithm_is_the_same(golden_loss: Golden) -> None:
    inputs, want = golden_loss["inputs"]["A"], golden_loss["opd"]
    got = Opd().advantages(batch_of(inputs), merge_options(Opd(), {}))
    torch.testing.assert_close(got.double(), -flat(want["reverse_kl"]), atol=1e-6, rtol=0)
    sums = [
        sum(r for r, m in zip(row, mask) if m) / sum(mask) for row, mask in zip(want["reverse_kl"], inputs["masks"])
    ]
    assert sum(sums) / len(sums) == pytest.approx(want["mean_sample"])


def test_d3_whitening_comes_before_the_teacher(cases_loss: Golden) -> None:
    case = cases_loss["D3"]
    gap = torch.tensor(case["inputs"]["reverse_kl"])
    batch = small_batch([[1, 1]]).with_columns(teacher_logp=-gap).with_old_logp(torch.zeros(2))
    loss_config = LossConfig(normalize_advantages=True, opd_kl_coef=case["inputs"]["coef"])
    got = prepare_step(Objective(Given(torch.zeros(2)), GRPO, "token_mean", loss_config=loss_config), batch).advantage
    assert got.tolist() == pytest.approx(case["right"], abs=1e-6)


def test_d2_the_sampled_tokens_term_has_the_reverse_kls_gradient(cases_loss: Golden) -> None:
    """And one number for all candidates has none."""
    p = torch.tensor(cases_loss["D2"]["inputs"]["p"], dtype=torch.float64)
    teacher = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    logits = p.log().requires_grad_()
    logp = torch.log_softmax(logits, 0)
    same = torch.full((2,), cases_loss["D2"]["inputs"]["penalty_at_this_prefix"], dtype=torch.float64)
    (nothing,) = torch.autograd.grad((p * same * logp).sum(), logits, retain_graph=True)
    assert nothing.tolist() == pytest.approx(cases_loss["D2"]["right"]["expected_gradient"], abs=1e-15)
    (got,) = torch.autograd.grad((p * (p.log() - teacher) * logp).sum(), logits, retain_graph=True)
    (want,) = torch.autograd.grad((logp.exp() * (logp - teacher)).sum(), logits)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("column", "loss_config"), [("teacher_logp", TERMS["teacher"]), ("ref_logp", TERMS["kl"])])
def test_a_models_nan_is_an_error_and_not_a_weight(column: str, loss_config: LossConfig) -> None:
    batch = small_batch([[1, 0, 1]]).with_columns(**{column: torch.tensor([-1.0, math.nan, math.nan])})
    batch = batch.with_old_logp(torch.zeros(3))
    with pytest.raises(TrainerError, match=rf"needs {column}, which is not finite at 1 of 2 trainable tokens"):
        prepare_step(Objective(Grpo(), GRPO, "token_mean", loss_config=loss_config), batch)


@pytest.mark.parametrize("name", ["kl", "teacher"])
def test_a_missing_column_is_named(name: str) -> None:
    batch = small_batch([[1]]).with_old_logp(torch.zeros(1))
    column = {"kl": "ref_logp", "teacher": "teacher_logp"}[name]
    with pytest.raises(TrainerError, match=f"needs {column}, and the batch has no such column"):
        prepare_step(Objective(Grpo(), GRPO, "token_mean", loss_config=TERMS[name]), batch)


# the loss --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "unbiased"), [("k2", False), ("k3", False), ("low_var_kl", False), ("k3", True)])
def test_the_kl_has_the_steps_own_weights(golden_loss: Golden, kind: str, unbiased: bool) -> None:
    inputs, batch = golden_loss["inputs"]["A"], batch_of(golden_loss["inputs"]["A"])
    loss_config = LossConfig(kl_loss_coef=0.5, kl_loss_type=kind, use_unbiased_kl=unbiased)
    prepared = prepare_step(Objective(Grpo(), GRPO, "sample_mean", loss_config=loss_config), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight(range(6)), range(6), dtype=torch.float64)
    view = share.view(flat(inputs["logp"]))
    plain, _ = micro_loss(Objective(Grpo(), GRPO), view, TokenColumns(share.advantage, share.weight))
    loss, pairs = micro_loss(
        Objective(Grpo(), GRPO, loss_config=loss_config), view, TokenColumns(share.advantage, share.weight)
    )
    token = flat(golden_loss["kl"]["k3_times_ratio" if unbiased else kind])
    want = sum(float(token[(batch.seg() == i) & batch.t("mask")].mean()) for i in range(6)) / 6
    metrics = finish(pairs)
    assert metrics["kl_loss"] == pytest.approx(want, abs=1e-6)
    assert metrics["ref_kl"] == pytest.approx(float(token[batch.t("mask")].mean()), abs=1e-6)
    assert float(loss - plain) == pytest.approx(0.5 * want, abs=1e-6)
    assert metrics["loss"] == pytest.approx(metrics["pg_loss"] + 0.5 * metrics["kl_loss"])


def test_a_correction_weighs_the_surrogate_only() -> None:
    """A token that is rejected still pulls towards the reference."""
    batch = small_batch([[1]]).with_columns(ref_logp=torch.tensor([-2.0]))
    objective = Objective(Grpo(), GRPO, "token_mean", loss_config=LossConfig(kl_loss_coef=1.0))
    prepared = prepare_step(objective, batch)
    share = MicroBatchSlice.of(prepared, prepared.weight([0]), [0])
    view = share.view(torch.tensor([-1.0], requires_grad=True))
    loss, _ = micro_loss(objective, view, TokenColumns(torch.ones(1), torch.ones(1), correction=torch.zeros(1)))
    assert float(loss.detach()) == 0.5


def test_without_a_reference_there_is_no_kl() -> None:
    prepared = prepare_step(Objective(Grpo(), GRPO, "token_mean"), small_batch([[1]]))
    view = MicroBatchSlice.of(prepared, prepared.weight([0]), [0]).view(torch.zeros(1))
    with pytest.raises(TrainerError, match=r"kl_loss_coef is 1\.0, but no reference"):
        micro_loss(
            Objective(Grpo(), GRPO, loss_config=LossConfig(kl_loss_coef=1.0)),
            view,
            TokenColumns(torch.ones(1), torch.ones(1)),
        )


def test_terms_leave_the_batch_alone() -> None:
    everything = LossConfig(
        normalize_advantages=True, opd_kl_coef=0.1, correction="tis", opsm_delta=0.1, overlong_buffer_len=3
    )
    case = random_case(5, frozenset({"teacher_logp"}))
    before = {name: np.copy(getattr(case.batch, name)) for name in ("reward", "mask", "old_logp", "rollout_logp")}
    Subject(Grpo(), "token_mean", loss_config=replace(everything, max_response_len=8)).prepare(case.batch)
    for name, x in before.items():
        assert np.array_equal(getattr(case.batch, name), x, equal_nan=x.dtype.kind == "f"), name
    assert set(CORRECTIONS) == {"tis", "icepop", "mis", "opsm"}
