"""The stages of a whole step: who counts, in which denominator, and what a broken stage gets to hear."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from vime_testing.toy_step import random_case, small_batch

from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import aggregation_of, merge_options, options_of
from vime_core.algorithms.prepare import prepare_step
from vime_core.algorithms.sft import Sft
from vime_core.api.errors import ConfigError, TrainerError
from vime_core.batch import SCHEMA
from vime_core.batch.plan import Packing, plan_steps
from vime_core.config.sections import Config

OPTIONS = merge_options(Grpo(), {})


# weights over optimizer steps ------------------------------------------------------------------------------------
def test_each_optimizer_step_counts_its_own_denominators() -> None:
    batch = small_batch([[1], [1, 1], [1] * 3, [1] * 4], group=[0, 0, 1, 1])
    prepared = prepare_step(Objective(Grpo(), OPTIONS, "token_mean"), batch)
    first, second = prepared.weight([0, 1]), prepared.weight([2, 3])
    assert first.tolist() == pytest.approx([1 / 3] * 3 + [0] * 7)
    assert second.tolist() == pytest.approx([0] * 3 + [1 / 7] * 7)


def test_the_weights_of_planned_steps_cover_every_trainable_token_once() -> None:
    case = random_case(3)
    rollouts = len(set(case.batch.rollout.tolist()))
    prepared = prepare_step(Objective(Grpo(), OPTIONS, "rollout_mean"), case.batch)
    steps = plan_steps(case.batch, Packing(dp_size=1, max_tokens=None), global_batch_size=1)
    weights = torch.stack([prepared.weight(step.samples) for step in steps])
    assert len(steps) == rollouts
    assert torch.equal((weights > 0).sum(0).bool(), prepared.mask)
    assert (weights > 0).sum(0).max() == 1


def test_an_unscored_sample_is_in_no_statistic_and_no_denominator() -> None:
    batch = small_batch([[1]] * 3, reward=[1.0, math.nan, 3.0])
    prepared = prepare_step(Objective(Grpo(), OPTIONS, "sample_mean"), batch)
    assert prepared.advantage.tolist() == pytest.approx([-1 / math.sqrt(2), 0, 1 / math.sqrt(2)], abs=1e-5)
    assert prepared.weight(range(3)).tolist() == [0.5, 0.0, 0.5]
    assert prepared.metrics["unselected_samples"] == 1


def test_supervised_samples_need_no_reward() -> None:
    batch = small_batch([[1, 0], [1, 1]], reward=[math.nan, math.nan])
    prepared = prepare_step(Objective(Sft(), {}, "token_mean"), batch)
    assert prepared.advantage.tolist() == [1.0, 0.0, 1.0, 1.0]
    assert prepared.weight([0, 1]).tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert "zero_std_groups" not in prepared.metrics


def test_a_step_with_nothing_to_train_is_all_zeros() -> None:
    prepared = prepare_step(Objective(Grpo(), OPTIONS, "rollout_mean"), small_batch([[0, 0], []]))
    assert prepared.weight([0, 1]).tolist() == [0.0, 0.0]
    assert prepared.metrics["empty_samples"] == 2
    assert prepared.metrics["trainable_tokens"] == 0


def test_metrics_of_a_step() -> None:
    batch = small_batch([[1]] * 5, reward=[0.0, 1.0, 2.0, 2.0, 9.0], group=[0, 0, 1, 1, 2])
    metrics = prepare_step(Objective(Grpo(), OPTIONS, "token_mean"), batch).metrics
    assert metrics["zero_std_groups"] == metrics["groups_of_one"] == pytest.approx(1 / 3)
    assert metrics["advantages/mean"] == pytest.approx(0.0, abs=1e-7)
    assert metrics["advantages/max"] == pytest.approx(0.7071, abs=1e-3)


def test_old_log_probs_are_computed_for_several_optimizer_steps_only() -> None:
    assert [Objective(Grpo(), OPTIONS).wants_old_logp(n) for n in (1, 2)] == [False, True]
    assert not Objective(Sft(), {}).wants_old_logp(2)


def test_a_stage_that_reads_old_log_probs_gets_them_before() -> None:
    class Early(Grpo):
        name = "early"
        recompute_old_logprobs = True

    assert Objective(Early(), OPTIONS).wants_old_logp(1)
    with pytest.raises(TrainerError, match="'early' needs old_logp"):
        prepare_step(Objective(Early(), OPTIONS, "token_mean"), small_batch([[1]]))


# broken stages ---------------------------------------------------------------------------------------------------
class Broken(Grpo):
    name = "broken"

    def __init__(self, stage: str, result: Any) -> None:
        self.stage, self.result = stage, result

    def select(self, batch: Any, options: Any) -> torch.Tensor:
        return self.result if self.stage == "select" else super().select(batch, options)

    def advantages(self, batch: Any, options: Any) -> torch.Tensor:
        return self.result if self.stage == "advantages" else super().advantages(batch, options)

    def correction(self, batch: Any, options: Any) -> Any:
        return (self.result, {}) if self.stage == "correction" else super().correction(batch, options)


@pytest.mark.parametrize(
    ("stage", "result", "message"),
    [
        ("select", torch.ones(2).bool(), r"select has shape \(2,\), expected \(3,\)"),
        ("advantages", torch.ones(3), r"advantages has shape \(3,\), expected \(4,\)"),
        ("advantages", torch.ones(4, requires_grad=True), "advantages must not carry a gradient"),
        ("advantages", torch.tensor([1, 1, math.nan, 1]), r"not finite at 1 .* sample 1 \(group 5, rollout 1\)"),
        ("correction", torch.ones(4, 1), r"correction has shape \(4, 1\)"),
        ("correction", torch.tensor([1, 1, 1, math.inf]), r"correction is not finite .* sample 2"),
    ],
)
def test_a_broken_stage_is_named(stage: str, result: Any, message: str) -> None:
    batch = small_batch([[1, 0], [1], [1]], group=[5, 5, 5])
    with pytest.raises(TrainerError, match=f"algorithm 'broken': .*{message}"):
        prepare_step(Objective(Broken(stage, result), OPTIONS, "token_mean"), batch)


class Author(Grpo):
    """Somebody's first try, wrong in one stage."""

    name = "author"
    defaults: ClassVar[Mapping[str, Any]] = {"scale": 1.0}

    def __init__(self, **stages: Any) -> None:
        self.stages = stages

    def select(self, batch: Any, options: Any) -> Any:
        return self.stages.get("select", lambda batch, options: batch.all_samples())(batch, options)

    def advantages(self, batch: Any, options: Any) -> Any:
        return self.stages.get("advantages", lambda batch, options: batch.t("mask").float())(batch, options)

    def correction(self, batch: Any, options: Any) -> Any:
        return self.stages.get("correction", lambda batch, options: (None, {}))(batch, options)

    def surrogate(self, view: Any, advantage: Any, options: Any) -> Any:
        return self.stages.get("surrogate", lambda view, advantage, options: (-advantage * view.logp, {}))(
            view, advantage, options
        )


def run_stages(algorithm: Author) -> None:
    batch = small_batch([[1, 0], [1], [1]], group=[5, 5, 5])
    before = {name: batch.t(name).clone() for name in SCHEMA}
    objective = Objective(algorithm, algorithm.defaults, "token_mean", source=" of plugin 'mine' (my-dist 1.0)")
    try:
        prepared = prepare_step(objective, batch)
        share = MicroBatchSlice.of(prepared, prepared.weight(range(3)), range(3))
        view = share.view(torch.full((4,), -1.0, requires_grad=True))
        micro_loss(objective, view, TokenColumns(share.advantage, share.weight))
    finally:
        for name, column in before.items():
            assert torch.equal(batch.t(name).nan_to_num(7.0), column.nan_to_num(7.0)), name


def test_the_author_s_algorithm_runs_when_nothing_is_wrong() -> None:
    run_stages(Author())


@pytest.mark.parametrize(
    ("stage", "wrong", "message"),
    [
        ("select", lambda b, o: None, r"gave NoneType None, expected a tensor of shape \(3,\)"),
        ("select", lambda b, o: torch.ones(3), "gave torch.float32, expected torch.bool"),
        ("select", lambda b, o: [True] * 3, r"gave list \[True, True, True\], expected a tensor"),
        ("advantages", lambda b, o: None, r"gave NoneType None, expected a tensor of shape \(4,\)"),
        ("advantages", lambda b, o: torch.ones(4, dtype=torch.int64), "gave torch.int64, expected floating"),
        ("advantages", lambda b, o: b.t("mask"), "gave torch.bool, expected floating"),
        ("advantages", lambda b, o: b.t("ref_logp"), "no column 'ref_logp': add it to `needs`"),
        ("advantages", lambda b, o: b.ref_logp, r"no 'ref_logp'; columns that `needs` names are read by"),
        ("advantages", lambda b, o: o["beta"], "there is no option 'beta': add it to `defaults`"),
        ("advantages", lambda b, o: 1 / 0, r"ZeroDivisionError at .*test_prepare.py:\d+: division by zero"),
        ("advantages", lambda b, o: sys.exit(0), r"SystemExit at .*test_prepare.py:\d+: 0"),
        ("advantages", lambda b, o: b.t("reward").zero_()[[0, 0, 1, 2]].float(), "changed reward of the"),
        ("correction", lambda b, o: None, r"gave NoneType None, it must return \(\[R\] weights or None, metr"),
        ("correction", lambda b, o: torch.ones(4), r"gave Tensor tensor.*, it must return"),
        ("correction", lambda b, o: (None, {"m": 1.0}), r"\(metric 'm'\) gave float 1.0, expected a tensor"),
        ("surrogate", lambda v, a, o: None, r"gave NoneType None, it must return \(\[r\] loss, metrics"),
        ("surrogate", lambda v, a, o: v.logp, r"gave Tensor tensor.*, it must return"),
        ("surrogate", lambda v, a, o: (v.ref_logp, {}), r"no 'ref_logp'; .*has it in `needs`"),
        ("surrogate", lambda v, a, o: (v.extra["ref_logp"], {}), "no column 'ref_logp': add it to"),
        ("surrogate", lambda v, a, o: (v.logp * o["beta"], {}), "no option 'beta': add it to"),
        ("surrogate", lambda v, a, o: (v.logp * a.mul_(2), {}), "changed advantage in pla"),
        ("surrogate", lambda v, a, o: (v.logp * v.mask.fill_(True), {}), "changed mask in place"),
    ],
)  # fmt: skip
def test_what_an_author_gets_to_hear(stage: str, wrong: Any, message: str) -> None:
    with pytest.raises(
        TrainerError, match=rf"^algorithm 'author' of plugin 'mine' \(my-dist 1.0\): {stage}.* ?{message}"
    ):
        run_stages(Author(**{stage: wrong}))


def test_a_value_that_is_not_finite_under_the_mask_is_nobodys_business() -> None:
    credit = torch.tensor([1.0, math.nan, 1.0, 1.0])
    prepared = prepare_step(
        Objective(Broken("advantages", credit), OPTIONS, "token_mean"), small_batch([[1, 0], [1], [1]])
    )
    assert prepared.advantage.tolist() == [1.0, 0.0, 1.0, 1.0]


def test_a_missing_column_is_refused() -> None:
    class Needy(Sft):
        name = "needy"
        needs = frozenset({"ref_logp", "values", "entropy", "old_logp"})

    with pytest.raises(TrainerError, match=r"'needy' needs ref_logp, values, and the batch has no such column"):
        prepare_step(Objective(Needy(), {}, "token_mean"), small_batch([[1]]))


# options ---------------------------------------------------------------------------------------------------------
def test_defaults_flags_and_further_options() -> None:
    config = Config().replace("algorithm", eps_clip=0.3, algorithm_options={"eps_clip_c": 2})
    assert options_of(config, Grpo()) == {
        "eps_clip": 0.3,
        "eps_clip_high": None,
        "eps_clip_c": 2,
        "disable_grpo_std_normalization": False,
    }
    assert options_of(Config(), Sft()) == {}


def test_all_violations_are_reported_together() -> None:
    config = Config().replace("algorithm", eps_clip=0.3, algorithm_options={"eps_clp": 1, "eps_clip": 0.2, "gamma": 1})
    with pytest.raises(ConfigError) as caught:
        options_of(config, Grpo())
    assert len(caught.value.violations) == 3
    text = str(caught.value)
    assert "eps_clip is given both as a flag and in algorithm_options" in text
    assert "does not read eps_clp; nearest: eps_clip" in text
    assert "does not read gamma" in text


def test_an_option_of_grpo_is_an_error_for_sft() -> None:
    with pytest.raises(ConfigError, match="algorithm 'sft' does not read eps_clip; it has no options"):
        options_of(Config().replace("algorithm", eps_clip=0.2), Sft())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eps_clip": "0.2"}, "takes a number there"),
        ({"eps_clip": None}, "takes a number there"),
        ({"disable_grpo_std_normalization": 1}, "takes a bool there"),
        ({"eps_clip": -0.1}, "eps_clip is -0.1; give a number from 0 to 1"),
        ({"eps_clip_high": "0.3"}, "eps_clip_high is '0.3'; give a number"),
        ({"eps_clip_c": 1.0}, "give a number above 1"),
    ],
)
def test_values_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        merge_options(Grpo(), given)


def test_the_choice_of_aggregation() -> None:
    base = Config()
    assert aggregation_of(base, Grpo()) == "rollout_mean"
    assert aggregation_of(base.replace("train", aggregation="prompt_mean"), Grpo()) == "prompt_mean"
    assert aggregation_of(base.replace("train", calculate_per_token_loss=True), Grpo()) == "token_mean"
    with pytest.raises(ConfigError, match="means aggregation token_mean, but aggregation is sample_mean"):
        aggregation_of(base.replace("train", aggregation="sample_mean", calculate_per_token_loss=True), Grpo())
    with pytest.raises(ConfigError, match="unknown aggregation 'token_meen'; nearest: 'token_mean'"):
        aggregation_of(base.replace("train", aggregation="token_meen"), Grpo())


def test_fixed_length_needs_a_length() -> None:
    with pytest.raises(ConfigError, match="set rollout_max_response_len"):
        prepare_step(Objective(Grpo(), OPTIONS, "fixed_length"), small_batch([[1]])).weight([0])
