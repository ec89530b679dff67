"""What ``vime explain loss`` prints adds up to the loss that the trainer's own functions compute."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vime_cli.explain.explanation import explain_sample
from vime_cli.explain.text import lines
from vime_cli.main import main
from vime_testing.toy_step import random_case

from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.loss_config import LossConfig
from vime_core.algorithms.metrics import finish
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import prepare_step
from vime_core.api.errors import DataError
from vime_core.batch.plan import Packing, plan_steps
from vime_core.observe.loss_inputs import read_loss_inputs
from vime_core.plugin.plugins import Plugins
from vime_core.training.loss_record import LossRecord, OptimizerStep, plain

AGGREGATIONS = ["sample_mean", "rollout_mean", "token_mean", "fixed_length", "prompt_mean", "sample_mean_nonempty"]
SHAPED = LossConfig(overlong_buffer_len=4, max_response_len=8, use_rollout_logprobs=True, normalize_advantages=True)
WITH_KL = LossConfig(kl_loss_coef=0.1, kl_loss_type="k3", use_unbiased_kl=True)


def algorithm_of(name: str) -> Any:
    return Plugins.load(autoload=False, environ={}).algorithms.resolve(name)()


def keep(
    folder: Path, name: str, aggregation: str, loss_config: LossConfig, optimizer_steps: int = 1
) -> list[dict[str, float]]:
    """Write the file of a step as the trainer does; the metrics of each optimizer step."""
    algorithm, case = algorithm_of(name), random_case(3, frozenset({"ref_logp"}))
    options = merge_options(algorithm, {})
    prepared = prepare_step(
        Objective(algorithm, options, aggregation, fixed_length=8, loss_config=loss_config), case.batch
    )
    logp = case.log_probs(case.logits)
    rollouts = len(set(case.batch.rollout.tolist()))
    plans = plan_steps(
        case.batch,
        Packing(dp_size=1, max_tokens=None, micro_batch_size=2),
        global_batch_size=-(-rollouts // optimizer_steps),
    )
    metrics = []
    for plan in plans:
        share = MicroBatchSlice.of(prepared, prepared.weight(plan.samples), plan.samples, dtype=torch.float64)
        view = share.view(logp[share.index])
        _, pairs = micro_loss(
            Objective(algorithm, options, loss_config=loss_config),
            view,
            TokenColumns(share.advantage, share.weight, correction=share.correction),
        )
        metrics.append(finish(pairs))
    facts = {"algorithm": name, "options": plain(options), "terms": plain(loss_config), "temperature": 1.0}
    LossRecord(folder / "loss", {**facts, "global_batch": rollouts}).write(
        7, case.batch, prepared, list(map(OptimizerStep, plans, metrics)), logp
    )
    return metrics


@pytest.mark.parametrize("loss_config", [LossConfig(), WITH_KL, SHAPED], ids=["plain", "kl", "shaped"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_the_shares_of_all_samples_are_the_loss(
    tmp_path: Path, name: str, aggregation: str, loss_config: LossConfig
) -> None:
    (metrics,) = keep(tmp_path, name, aggregation, loss_config)
    inputs, algorithm = read_loss_inputs(tmp_path / "loss", 7), algorithm_of(name)
    each = [explain_sample(inputs, algorithm, i) for i in range(len(inputs.columns["reward"]))]
    assert sum(e.pg_loss for e in each) == pytest.approx(metrics["pg_loss"], rel=1e-6)
    assert all(e.total == pytest.approx(metrics["pg_loss"], rel=1e-6) for e in each)
    kl = sum(e.kl_loss for e in each)
    assert sum(e.pg_loss for e in each) + kl == pytest.approx(metrics["loss"], rel=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_printed_denominators_make_the_weight(tmp_path: Path, aggregation: str) -> None:
    keep(tmp_path, "grpo", aggregation, LossConfig())
    inputs = read_loss_inputs(tmp_path / "loss", 7)
    starts = torch.from_numpy(inputs.columns["response_lengths"]).cumsum(0)
    for i in range(len(starts)):
        e = explain_sample(inputs, algorithm_of("grpo"), i)
        text = "\n".join(lines(e))
        own = inputs.columns["weight"][int(starts[i]) - int(inputs.columns["response_lengths"][i]) : int(starts[i])]
        weights = own[own > 0]
        if len(weights):
            printed = re.search(r"= 1 / \(.*\) = (\S+)$", text, re.MULTILINE)
            assert printed is not None
            assert float(printed.group(1)) == pytest.approx(weights[0], rel=1e-5)
        else:
            assert "this sample +0;" in text


def test_several_optimizer_steps_each_have_their_own_denominators(tmp_path: Path) -> None:
    metrics = keep(tmp_path, "grpo", "token_mean", LossConfig(), optimizer_steps=3)
    inputs = read_loss_inputs(tmp_path / "loss", 7)
    for i in range(len(inputs.columns["reward"])):
        e = explain_sample(inputs, algorithm_of("grpo"), i)
        if e.optimizer_step >= 0:
            assert e.total == pytest.approx(metrics[e.optimizer_step]["pg_loss"], rel=1e-6)
        else:
            assert "left out" in "\n".join(lines(e))


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (metrics,) = keep(tmp_path, "grpo", "rollout_mean", LossConfig())
    assert main(["explain", "loss", "--run", str(tmp_path), "--step", "7", "--sample", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"the trainer logged pg_loss {metrics['pg_loss']:+.6g}" in printed
    assert "rewards of the group" in printed
    assert "masked" in printed or "advantage" in printed


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path, "grpo", "rollout_mean", LossConfig())
    with pytest.raises(DataError, match=r"has samples 0 \.\. \d+, not 999"):
        explain_sample(read_loss_inputs(tmp_path / "loss", 7), algorithm_of("grpo"), 999)
    assert main(["explain", "loss", "--run", str(tmp_path), "--step", "8", "--sample", "0"]) == 2
    assert "no loss inputs of step 8 (there are: 7)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind"), [("gspo", "one a sequence"), ("gmpo", "one a sequence"), ("dppo", "sampler")]
)
def test_the_ratio_is_the_one_that_the_algorithm_used(tmp_path: Path, name: str, kind: str) -> None:
    keep(tmp_path, name, "sample_mean", LossConfig())
    inputs = read_loss_inputs(tmp_path / "loss", 7)
    checked = 0
    for i in range(len(inputs.columns["reward"])):
        c = explain_sample(inputs, algorithm_of(name), i).columns
        trained = c["trained"]
        shown, own = c["ratio"][trained], (c["logp"] - c["old"]).exp()[trained]
        if len(shown) < 2:
            continue
        checked += 1
        if kind == "sampler":
            mu = c["sampler"][trained]
            torch.testing.assert_close(shown, torch.where(mu.isnan(), 1.0, (c["logp"][trained] - mu).exp()))
        else:
            assert len(set(shown.tolist())) == 1
            if name == "gspo":
                assert float(shown[0]) == pytest.approx(float(own.log().mean().exp()))
    assert checked


def test_there_is_no_percentage_of_next_to_nothing(tmp_path: Path) -> None:
    keep(tmp_path, "grpo", "token_mean", LossConfig())
    e = explain_sample(read_loss_inputs(tmp_path / "loss", 7), algorithm_of("grpo"), 2)
    assert e.mass >= abs(e.total)
    assert "% of it)" in "\n".join(lines(replace(e, total=0.5 * e.mass)))
    text = "\n".join(lines(replace(e, total=1e-9 * e.mass)))
    assert "%" not in text
    assert "which is next to nothing" in text
