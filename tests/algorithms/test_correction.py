"""Off-policy corrections against golden numbers, reported mistakes and edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.algorithms.correction import Correction, CorrectionResult, combine, corrections_of
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.importance import CORRECTIONS, Mis, icepop, opsm, tis
from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.loss_config import LossConfig
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import prepare_step
from vime_core.api.errors import ConfigError, TrainerError
from vime_core.batch.step_batch import StepBatch

Golden = dict[str, Any]
OPTIONS = merge_options(Grpo(), {})
TIS = LossConfig(correction="tis", correction_options={"low": 0.0, "high": 2.0})


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def batch_of(inputs: Golden, **columns: Any) -> StepBatch:
    n = len(inputs["masks"])
    batch = small_batch(
        inputs["masks"], rollout_logp=flat(inputs["rollout_logp"]), rollout=range(n), group=inputs["groups"], **columns
    )
    return batch.with_old_logp(flat(inputs["old_logp"]))


def pair(old: list[float], mu: list[float], mask: list[list[int]] | None = None, **columns: Any) -> StepBatch:
    """One sample of these tokens, or as many as ``mask`` has rows."""
    batch = small_batch(mask or [[1] * len(old)], rollout_logp=mu, **columns)
    return batch.with_old_logp(torch.tensor(old))


def of_ratios(*ratios: float) -> StepBatch:
    return pair([math.log(r) for r in ratios], [0.0] * len(ratios))


def nothing(batch: StepBatch) -> torch.Tensor:
    return torch.zeros(batch.response_tokens)


def final(result: CorrectionResult, batch: StepBatch) -> torch.Tensor:
    """[R] what multiplies the surrogate."""
    combined = combine([Correction("it", lambda *_: result)], batch, nothing(batch), batch.t("mask"))
    assert combined.weight is not None
    return torch.where(batch.t("mask"), combined.weight.double(), torch.zeros((), dtype=torch.float64))


# golden ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize(("mode", "suffix"), [("truncate", "_2"), ("clip", "_0.5_2"), ("mask", "_0.5_2")])
def test_levels_and_modes(golden_loss: Golden, level: str, mode: str, suffix: str) -> None:
    batch = batch_of(golden_loss["inputs"]["A"])
    got = final(Mis(level=level, mode=mode, low=0.5, high=2.0)(batch, nothing(batch)), batch)
    torch.testing.assert_close(got, flat(golden_loss["offpolicy"][f"{level}_{mode}{suffix}"]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_the_ratio_itself(golden_loss: Golden, level: str) -> None:
    batch = batch_of(golden_loss["inputs"]["A"])
    got = final(Mis(level=level, mode="clip", low=0.0, high=100.0)(batch, nothing(batch)), batch)
    torch.testing.assert_close(got, flat(golden_loss["offpolicy"][f"{level}_raw"]), atol=1e-6, rtol=0)


def test_truncation_by_name(golden_loss: Golden) -> None:
    batch, want = batch_of(golden_loss["inputs"]["A"]), golden_loss["offpolicy"]
    result = tis(batch, nothing(batch))
    torch.testing.assert_close(final(result, batch), flat(want["token_truncate_2"]), atol=1e-6, rtol=0)
    assert result.metrics["ess"] == pytest.approx(want["token_truncate_2_ess"], abs=1e-6)
    wide = tis(batch, nothing(batch), high=100.0).metrics
    assert wide["ess"] == pytest.approx(want["token_raw_ess"], abs=1e-6)
    rho = flat(want["token_raw"])[batch.t("mask")]
    assert result.metrics["tis"] == wide["tis"] == pytest.approx(float(rho.mean()), abs=1e-6)
    assert result.metrics["tis_abs"] == pytest.approx(float((rho - 1).abs().mean()), abs=1e-6)
    assert (result.metrics["tis_clipfrac"], wide["tis_clipfrac"]) == (float((rho > 2).double().mean()), 0.0)


def test_normalized_to_a_mean_of_one(golden_loss: Golden) -> None:
    batch, want = batch_of(golden_loss["inputs"]["A"]), golden_loss["offpolicy"]
    got = final(Mis(mode="truncate", normalize=True)(batch, nothing(batch)), batch)
    torch.testing.assert_close(got, flat(want["token_truncate_2_normalised"]), atol=1e-6, rtol=0)
    plain = final(Mis(mode="truncate")(batch, nothing(batch)), batch)
    mean = float(plain[batch.t("mask")].mean())
    assert mean == pytest.approx(want["token_truncate_2_batch_mean"], abs=1e-6)


def test_sequences_are_normalized_as_sequences(golden_loss: Golden) -> None:
    batch = batch_of(golden_loss["inputs"]["A"])
    got = final(Mis(level="sequence", mode="truncate", normalize=True)(batch, nothing(batch)), batch)
    firsts = [got[batch.seg() == i].max() for i in range(len(batch))]
    assert float(torch.stack(firsts).mean()) == pytest.approx(1.0, abs=1e-6)


def test_veto(golden_loss: Golden) -> None:
    batch, want = batch_of(golden_loss["inputs"]["A"]), golden_loss["offpolicy"]["veto_keep_min_ratio_0.45"]
    result = Mis(mode="truncate", veto=0.45)(batch, nothing(batch))
    kept = [bool(result.keep[batch.seg() == i].all()) for i in range(len(batch))]
    assert kept == [bool(x) for x in want]
    assert result.metrics["vetoed_samples"] == result.metrics["rejected_samples"] == 2 / 6


def test_opsm(golden_loss: Golden) -> None:
    """The table measures the current policy, which is the old one when a step begins."""
    inputs, want = golden_loss["inputs"]["A"], golden_loss["offpolicy"]
    batch = batch_of(inputs).with_old_logp(flat(inputs["logp"]))
    advantage = torch.tensor(inputs["adv_seq"])[batch.seg()]
    result = opsm(batch, advantage, delta=0.05)
    kept = [int(result.keep[batch.seg() == i].all()) for i in range(len(batch))]
    assert kept == want["opsm_keep_delta0.05"]
    dropped = torch.tensor(kept)[batch.seg()] == 0
    assert result.metrics["opsm_clipfrac"] == pytest.approx(float(dropped[batch.t("mask")].double().mean()))
    drift = torch.tensor(inputs["adv_seq"]).sign() * torch.tensor(want["opsm_seq_kl"])
    assert [int(x > -0.05 or s > 0) for x, s in zip(drift.tolist(), inputs["adv_seq"])] == kept


@pytest.mark.parametrize(
    ("name", "options", "want"),
    [
        ("tis", {"high": 2.0}, "pg_tis_sample_mean"),
        ("icepop", {"low": 0.5, "high": 2.0}, "pg_icepop_sample_mean_fixed_denominator"),
    ],
)
def test_through_the_whole_loss(golden_loss: Golden, name: str, options: Golden, want: str) -> None:
    inputs = golden_loss["inputs"]["A"]
    loss_config = LossConfig(correction=name, correction_options=options)
    batch, wider = batch_of(inputs), merge_options(Grpo(), {"eps_clip_high": 0.28})
    corrections = corrections_of(loss_config, CORRECTIONS.__getitem__)
    prepared = prepare_step(
        Objective(Grpo(), wider, "sample_mean", loss_config=loss_config, corrections=corrections), batch
    )
    share = MicroBatchSlice.of(prepared, prepared.weight(range(6)), range(6), dtype=torch.float64)
    loss, _ = micro_loss(
        Objective(Grpo(), wider),
        share.view(flat(inputs["logp"])),
        TokenColumns(flat(inputs["adv_tok"]), share.weight, correction=share.correction),
    )
    assert float(loss) == pytest.approx(golden_loss["offpolicy"][want], abs=1e-6)


# reported mistakes -----------------------------------------------------------------------------------------------
def test_r2_bounds_are_on_the_ratio(cases_loss: Golden) -> None:
    case = cases_loss["R2"]
    low, high = case["inputs"]["bounds"]
    batch = of_ratios(*case["inputs"]["ratios"])
    for result in (icepop(batch, nothing(batch), low=low, high=high), Mis(low=low, high=high)(batch, nothing(batch))):
        assert result.keep.int().tolist() == case["right"]


def test_r3_no_gradient_through_the_weight(cases_loss: Golden) -> None:
    case = cases_loss["R3"]["inputs"]
    logp = torch.tensor([case["logp"]], requires_grad=True)
    batch = small_batch([[1]], rollout_logp=[case["rollout_logp"]]).with_old_logp(logp)
    weight = final(tis(batch, nothing(batch)), batch)
    (-weight * logp * case["adv"]).sum().backward()
    assert logp.grad.item() == pytest.approx(cases_loss["R3"]["right"]["grad"], abs=1e-6)


@pytest.mark.parametrize("name", ["tis", "icepop", "mis"])
def test_r4_a_missing_log_prob_weighs_one_and_is_counted(cases_loss: Golden, name: str) -> None:
    case = cases_loss["R4"]
    old = [float(x) for x in case["inputs"]["old_logp"]]
    batch = pair(old, [float(x) for x in case["inputs"]["rollout_logp"]])
    result = Correction(name, CORRECTIONS[name])(batch, nothing(batch))
    assert final(result, batch).tolist() == case["right"]["weights"]
    assert result.metrics["missing_rollout_logprobs"] == 1


def test_r6_opsm_measures_the_sampler(cases_loss: Golden) -> None:
    case = cases_loss["R6"]["inputs"]
    batch = pair([float(x) for x in case["logp"]], case["sampler"])
    result = opsm(batch, torch.full((2,), float(case["adv"])), delta=case["delta"])
    assert set(result.keep.int().tolist()) == {cases_loss["R6"]["right"]["keep"]}


def test_r7_opsm_decides_about_sequences(cases_loss: Golden) -> None:
    case = cases_loss["R7"]["inputs"]
    batch = pair([float(x) for x in case["logp"]], [float(x) for x in case["old"]])
    assert opsm(batch, torch.tensor(case["adv"]), delta=case["delta"]).keep.int().tolist() == cases_loss["R7"]["right"]


def test_r11_kept_sequences_are_truncated_token_by_token(cases_loss: Golden) -> None:
    case = cases_loss["R11"]["inputs"]
    low, high = case["bounds"]
    batch = of_ratios(*case["token_ratios"])
    bounds = {"low": low, "high": high, "reject_low": low, "reject_high": high}
    weight = final(Mis(mode="clip", reject_level="geometric", **bounds)(batch, nothing(batch)), batch)
    assert float((-weight * case["adv"]).mean()) == pytest.approx(cases_loss["R11"]["right"]["loss"], abs=1e-6)


def test_r12_masked_advantages_are_not_in_the_sequences_mean(cases_loss: Golden) -> None:
    inputs = cases_loss["R12"]["inputs"]
    batch = pair([0.0] * 4, [1.0] * 4, [inputs["mask"]])
    advantage = -torch.tensor([float(x) for x in inputs["adv"]])
    advantage[2:] *= -1  # under the mask, and enough to turn the sign
    assert not opsm(batch, advantage, delta=0.1).keep.any()


# edges -----------------------------------------------------------------------------------------------------------
def test_infinite_log_ratios_are_bounded() -> None:
    batch = pair([0.0, 0.0], [-math.inf, 100.0])
    assert final(tis(batch, nothing(batch)), batch).tolist() == pytest.approx([2.0, math.exp(-20)])
    assert final(icepop(batch, nothing(batch)), batch).tolist() == [0.0, 0.0]


def test_a_sequence_of_missing_tokens_keeps_the_known_ones_ratio() -> None:
    batch = pair([math.log(3.0), 0.0], [0.0, math.nan])
    for level in ("sequence", "geometric"):
        got = final(Mis(level=level, mode="clip", high=10.0)(batch, nothing(batch)), batch)
        assert got.tolist() == pytest.approx([3.0, 3.0])


def test_rejection_at_each_level() -> None:
    """Two samples: ratios 4, 1/4 (product 1) and 3 alone."""
    old = [math.log(4), math.log(0.25), math.log(3)]
    batch = pair(old, [0.0] * 3, [[1, 1], [1]])
    kept = {
        level: Mis(mode="truncate", reject_level=level, reject_high=2.0)(batch, nothing(batch)).keep.tolist()
        for level in ("token", "sequence", "geometric")
    }
    assert kept == {
        "token": [False, True, False],
        "sequence": [True, True, False],
        "geometric": [True, True, False],
    }


@pytest.mark.parametrize("leave", [False, True])
def test_rejected_tokens_keep_their_place_unless_told(leave: bool) -> None:
    loss_config = LossConfig(correction="icepop", correction_options={"leave_denominator": leave})
    batch = of_ratios(1.0, 1.0, 100.0, 1.0)
    prepared = prepare_step(
        Objective(
            Grpo(),
            OPTIONS,
            "token_mean",
            loss_config=loss_config,
            corrections=corrections_of(loss_config, CORRECTIONS.__getitem__),
        ),
        batch,
    )
    assert prepared.weight([0])[0] == (pytest.approx(1 / 3) if leave else 1 / 4)
    assert prepared.metrics["trainable_tokens"] == (3 if leave else 4)
    assert prepared.metrics["rejected_tokens"] == 1 / 4
    assert prepared.correction.tolist()[2] == 0.0


def test_nothing_trainable_gives_no_numbers() -> None:
    batch = pair([0.0], [0.0], [[0]])
    for name, function in CORRECTIONS.items():
        result = Correction(name, function)(batch, nothing(batch))
        assert result.metrics.keys() <= {"missing_rollout_logprobs"}, name


def test_everything_rejected_is_a_zero_and_not_a_nan() -> None:
    batch = of_ratios(1e-6, 1e-6)
    result = Mis(normalize=True)(batch, nothing(batch))
    assert final(result, batch).tolist() == [0.0, 0.0]
    assert result.metrics["rejected_samples"] == 1.0
    assert "ess" not in result.metrics


def test_two_corrections_multiply() -> None:
    loss_config = LossConfig(correction="tis", correction_options={"high": 1.5}, opsm_delta=0.1)
    batch = pair([1.0, 0.0], [0.0, 1.0], [[1], [1]])
    corrections = corrections_of(loss_config, CORRECTIONS.__getitem__)
    combined = combine(corrections, batch, torch.tensor([-1.0, -1.0]), batch.t("mask"))
    assert combined.weight.tolist() == [1.5, 0.0]
    assert {"tis", "opsm_clipfrac"} <= combined.metrics.keys()


def test_a_correction_sees_only_what_counts() -> None:
    """Truncated samples that are masked, for one, are in no mean."""
    seen = []

    def look(batch: StepBatch, advantage: torch.Tensor) -> CorrectionResult:
        seen.append(batch.mask.tolist())
        return CorrectionResult()

    loss_config = LossConfig(correction="look", mask_truncated_samples=True)
    batch = pair([0.0] * 2, [0.0] * 2, [[1], [1]], truncated=[True, False], reward=[1.0, 0.0])
    prepared = prepare_step(
        Objective(Grpo(), OPTIONS, "token_mean", loss_config=loss_config, corrections=[Correction("look", look)]), batch
    )
    assert seen == [[False, True]]
    assert prepared.correction is None or prepared.correction.tolist() == [1.0, 1.0]


# options and contract --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tis", {"hihg": 3.0}, r"'tis' does not read hihg \(it reads: low, high\)"),
        ("tis", {"low": 3.0}, r"bounds 3.0 and 2.0: give 0 <= low <= high"),
        ("icepop", {"high": math.inf}, r"give 0 <= low <= high"),
        ("mis", {"level": "turn"}, r"level 'turn' is unknown; give token, sequence or geometric"),
        ("mis", {"mode": "drop"}, r"mode 'drop' is unknown; give truncate, clip or mask"),
        ("mis", {"reject_low": "much"}, r"correction 'mis' with options \{'reject_low': 'much'\}"),
    ],
)
def test_wrong_options_are_found_before_any_step(name: str, options: Golden, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        corrections_of(LossConfig(correction=name, correction_options=options), CORRECTIONS.__getitem__)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "'bad' gave NoneType, expected CorrectionResult"),
        (CorrectionResult(torch.ones(3)), r"weight has shape \(3,\), expected \(2,\)"),
        (CorrectionResult(keep=torch.ones(1, dtype=torch.bool)), r"keep has shape \(1,\)"),
        (CorrectionResult(torch.ones(2, requires_grad=True)), "must not carry a gradient"),
        (CorrectionResult(torch.tensor([1.0, math.nan])), "not finite at 1 trainable tokens"),
    ],
)
def test_a_broken_correction_is_named(result: Any, message: str) -> None:
    batch = pair([0.0, 0.0], [0.0, 0.0])
    with pytest.raises(TrainerError, match=message):
        Correction("bad", lambda *_: result)(batch, nothing(batch))


def test_needs_and_when_they_are_read() -> None:
    assert TIS.needs == {"rollout_logp", "old_logp"}
    assert TIS.recompute_old_logprobs
    assert not LossConfig().recompute_old_logprobs
    batch = small_batch([[1]], rollout_logp=[-1.0])
    with pytest.raises(TrainerError, match="needs old_logp"):
        prepare_step(Objective(Grpo(), OPTIONS, "token_mean", loss_config=TIS), batch)


def test_a_correction_of_a_plugin_is_named_with_it() -> None:
    def writes(batch: StepBatch, advantage: torch.Tensor) -> CorrectionResult:
        batch.t("reward").zero_()
        advantage.zero_()
        return CorrectionResult()

    def divides(batch: StepBatch, advantage: torch.Tensor) -> CorrectionResult:
        return CorrectionResult(weight=1 / 0)  # type: ignore[arg-type]

    batch, advantage = small_batch([[1, 1]], reward=[2.0]), torch.ones(2)
    who = r"correction 'mine' of plugin 'p' \(d 1\.0\)"
    for function, message in (
        (writes, " changed reward, advantage in place"),
        (divides, ": ZeroDivisionError at .*py:"),
    ):
        with pytest.raises(TrainerError, match=who + message):
            combine([Correction("mine", function, source=" of plugin 'p' (d 1.0)")], batch, advantage, batch.t("mask"))
    assert (batch.reward.tolist(), advantage.tolist()) == ([2.0], [1.0, 1.0])
