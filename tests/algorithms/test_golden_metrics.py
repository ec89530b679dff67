"""Log-probs, entropies and the distances between trainer and sampler against golden numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.metrics import finish
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import prepare_step
from vime_core.batch.step_batch import StepBatch
from vime_core.training.logprobs import ChunkedSoftmax, VocabShard, token_logprobs
from vime_core.training.mismatch import mismatch

Golden = dict[str, Any]


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def batch_of(inputs: Golden) -> StepBatch:
    return small_batch(inputs["masks"], rollout_logp=flat(inputs["rollout_logp"]), group=inputs["groups"])


# log-probs -------------------------------------------------------------------------------------------------------
def through_the_head(
    logits: torch.Tensor, targets: list[int], temperature: float, chunk: int = 2
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of logits as hidden states under a head that is the identity."""
    size = logits.shape[1]
    logp, entropy = token_logprobs(
        logits, torch.eye(size), torch.tensor(targets), VocabShard(0, size), ChunkedSoftmax(temperature, chunk, True)
    )
    assert entropy is not None
    return logp, entropy


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropies(golden_loss: Golden, temperature: float) -> None:
    logits, want = torch.tensor(golden_loss["inputs"]["logits"]), golden_loss["logits"][f"T{temperature}"]
    logp, entropy = through_the_head(logits, golden_loss["inputs"]["targets"], temperature)
    assert logp.tolist() == pytest.approx(want["logp"], abs=3e-6)
    assert entropy.tolist() == pytest.approx(want["entropy"], abs=3e-6)


def test_gradient_of_the_entropy(golden_loss: Golden) -> None:
    logits = torch.tensor(golden_loss["inputs"]["logits"], requires_grad=True)
    _, entropy = through_the_head(logits, golden_loss["inputs"]["targets"], 1.0)
    entropy.sum().backward()
    want = torch.tensor(golden_loss["logits"]["entropy_grad_logits_T1"])
    torch.testing.assert_close(logits.grad, want, atol=1e-6, rtol=0)


def test_d1_student_and_teacher_have_one_temperature(cases_loss: Golden) -> None:
    case = cases_loss["D1"]
    student, teacher = (torch.tensor([case["inputs"][f"{who}_logits"]]).float() for who in ("student", "teacher"))
    token, temperature = [case["inputs"]["token"]], case["inputs"]["temperature"]
    ours, _ = through_the_head(student, token, temperature)
    gaps = [float(ours - through_the_head(teacher, token, t)[0]) for t in (temperature, 1.0)]
    assert gaps == pytest.approx([case["right"]["reverse_kl"], case["wrong"]["reverse_kl"]], abs=1e-6)


def test_r8_a_cut_distribution_is_another_one(cases_loss: Golden) -> None:
    """Why top-p must be 1: the sampler's numbers are over the kept tokens, the trainer's over all."""
    case = cases_loss["R8"]["inputs"]
    logits = torch.tensor([case["p"]]).log()
    whole, _ = through_the_head(logits, [case["token"]], 1.0)
    kept, _ = through_the_head(logits[:, case["kept"]], [case["kept"].index(case["token"])], 1.0)
    assert math.exp(float(whole - kept)) == pytest.approx(cases_loss["R8"]["wrong"]["ratio"], abs=1e-6)


# trainer and sampler ---------------------------------------------------------------------------------------------
def test_distances(golden_loss: Golden) -> None:
    inputs, want = golden_loss["inputs"]["A"], golden_loss["metrics"]
    got = mismatch(batch_of(inputs), flat(inputs["old_logp"]), detailed=True)
    assert got["train/train_rollout_logprob_abs_diff"] == pytest.approx(
        want["train_rollout_logprob_abs_diff_token_mean"], abs=1e-6
    )
    names = {"kl": "mismatch_kl_k1", "k3_kl": "mismatch_k3"}
    for name in ("kl", "k3_kl", "chi2_token", "chi2_seq", "log_ppl_diff"):
        assert got[f"train/mismatch_{name}"] == pytest.approx(want[names.get(name, name)], abs=1e-6), name
    assert got["train/mismatch_ess"] == pytest.approx(golden_loss["offpolicy"]["token_raw_ess"], abs=1e-6)


def test_ppo_kl_is_a_token_mean(golden_loss: Golden) -> None:
    inputs, options = golden_loss["inputs"]["A"], merge_options(Grpo(), {})
    batch = batch_of(inputs).with_old_logp(flat(inputs["old_logp"]))
    prepared = prepare_step(Objective(Grpo(), options, "sample_mean"), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight(range(6)), range(6), dtype=torch.float64)
    _, pairs = micro_loss(
        Objective(Grpo(), options), share.view(flat(inputs["logp"])), TokenColumns(share.advantage, share.weight)
    )
    assert finish(pairs)["ppo_kl"] == pytest.approx(golden_loss["metrics"]["ppo_kl_token_mean"], abs=1e-6)


def test_equal_policies_have_no_distance() -> None:
    batch = small_batch([[1, 1], [1], []], rollout_logp=[-1.0, -2.0, -3.0])
    got = mismatch(batch, batch.t("rollout_logp"), detailed=True)
    ones = {"train/mismatch_ess", "train/mismatch_ppl_ratio"}
    assert {name: x for name, x in got.items() if x != (name in ones)} == {}


def test_what_is_missing_is_counted_and_not_compared() -> None:
    batch = small_batch([[1, 1, 0]], rollout_logp=[-1.0, math.nan, math.nan])
    got = mismatch(batch, torch.tensor([-1.5, -7.0, math.nan]), detailed=True)
    assert got["train/missing_rollout_logprobs"] == 1
    assert got["train/mismatch_kl"] == got["train/train_rollout_logprob_abs_diff"] == 0.5
    assert "train/mismatch_kl" not in mismatch(batch, torch.zeros(3))


def test_some_samples_alone() -> None:
    batch = small_batch([[1], [1]], rollout_logp=[-1.0, -1.0])
    logp = torch.tensor([-1.5, -3.0])
    assert mismatch(batch, logp, samples=[0])["train/train_rollout_logprob_abs_diff"] == 0.5
    assert mismatch(batch, logp, samples=[1, 0])["train/train_rollout_logprob_abs_diff"] == 1.25


def test_supervised_data_has_no_sampler() -> None:
    assert mismatch(small_batch([[1]]), torch.zeros(1), detailed=True) == {}
