"""What is kept of a step is enough to compute its loss again, without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.one_rank import train
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.loss_config import LossConfig
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.prepare import prepare_step
from vime_core.batch.step_batch import SCHEMA, StepBatch
from vime_core.observe.loss_inputs import LossInputs, read_loss_inputs, steps_of

KL = {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coef": 0.0}


def batch_of(kept: LossInputs) -> StepBatch:
    further = {name: (axis, kept.columns[name]) for name, axis in kept.facts["axes"].items()}
    batch = StepBatch.of(**{name: kept.columns[name] for name in SCHEMA}, extra=further)
    old = kept.columns.get("old_logp")
    return batch if old is None else batch.with_old_logp(torch.from_numpy(old))


@pytest.fixture(scope="module", params=[1, 2], ids=["one update", "two updates"])
def kept(request: pytest.FixtureRequest, folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    losses = tmp_path_factory.mktemp("losses")
    more: dict[str, Any] = {"model": {"ref_load": folders["other"]}, "algorithm": KL | {"normalize_advantages": True}}
    trained = train(folders["policy"], 2, losses=losses, train={"num_steps_per_rollout": request.param}, **more)
    assert steps_of(losses) == [0, 1]
    return read_loss_inputs(losses, 1), trained["rows"][1]


def test_the_stages_can_be_run_again(kept: tuple[LossInputs, dict[str, float]]) -> None:
    inputs, _ = kept
    facts = inputs.facts
    prepared = prepare_step(
        Objective(Grpo(), facts["options"], facts["aggregation"], loss_config=LossConfig(**facts["terms"])),
        batch_of(inputs),
    )
    assert facts["algorithm"] == "grpo"
    for name, column in {"advantage": prepared.advantage, "trained": prepared.mask}.items():
        np.testing.assert_array_equal(inputs.columns[name], column.numpy(), err_msg=name)
    for number in range(len(facts["optimizer_steps"])):
        samples = np.flatnonzero(inputs.columns["optimizer_step"] == number)
        here = np.isin(batch_of(inputs).seg().numpy(), samples)
        np.testing.assert_array_equal(np.where(here, inputs.columns["weight"], 0), prepared.weight(samples.tolist()))


def test_every_update_adds_up_to_the_loss_that_the_trainer_saw(kept: tuple[LossInputs, dict[str, float]]) -> None:
    inputs, row = kept
    columns, updates = inputs.columns, inputs.facts["optimizer_steps"]
    seg = np.repeat(np.arange(len(columns["group"])), columns["response_lengths"])
    for number, seen in enumerate(updates):
        here = columns["trained"] & (columns["optimizer_step"][seg] == number)
        logp, advantage, weight, ref = (
            columns[x][here].astype(float) for x in ("logp", "advantage", "weight", "ref_logp")
        )
        ratio = np.exp(logp - columns.get("old_logp", columns["logp"])[here])
        surrogate = np.maximum(-ratio * advantage, -ratio.clip(0.8, 1.2) * advantage)
        assert seen["pg_loss"] == pytest.approx((weight * surrogate).sum(), abs=1e-5)
        assert seen["kl_loss"] == pytest.approx((weight * (logp - ref) ** 2 / 2).sum(), rel=1e-5)
        assert seen["loss"] == pytest.approx(seen["pg_loss"] + 0.1 * seen["kl_loss"], abs=1e-6)
    assert row["train/loss"] == pytest.approx(np.mean([seen["loss"] for seen in updates]))
