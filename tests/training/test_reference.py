"""The reference is its folder's model to the bit, follows the policy when told to, and survives a resume."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.one_rank import train, without_times
from tests.support.ranks import result_of
from vime_core.api.errors import ConfigError
from vime_core.observe.loss_inputs import LossInputs, read_loss_inputs

KL = {"use_kl_loss": True, "kl_loss_coef": 0.1}
TWO = {"num_steps_per_rollout": 2}


def kl_of(trained: dict[str, Any]) -> list[float]:
    return [row["train/kl_loss"] for row in trained["rows"]]


def test_kl_is_exactly_zero_until_the_first_update(folders: dict[str, str], tmp_path: Path) -> None:
    trained = train(folders["policy"], 2, losses=tmp_path, algorithm=KL, train=TWO)
    first = read_loss_inputs(tmp_path, 0)
    np.testing.assert_array_equal(first.columns["ref_logp"], first.columns["old_logp"])
    updates = first.facts["optimizer_steps"]
    assert updates[0]["kl_loss"] == updates[0]["ref_kl"] == 0.0
    assert updates[1]["kl_loss"] > 0
    assert kl_of(trained)[1] > 0


def test_the_reference_is_its_folder_to_the_bit(folders: dict[str, str], tmp_path: Path) -> None:
    """What the other folder's model says as a policy, before it is trained, it says as a reference; and it does not
    move when the policy does."""
    hot = {"rollout_temperature": 0.7}
    train(folders["policy"], 2, losses=tmp_path / "a", algorithm=KL, model={"ref_load": folders["other"]}, rollout=hot)
    for step in range(2):
        train(folders["other"], 1, first=step, losses=tmp_path / "b", rollout=hot)
        said = read_loss_inputs(tmp_path / "b", step).columns["logp"]
        np.testing.assert_array_equal(read_loss_inputs(tmp_path / "a", step).columns["ref_logp"], said)


@pytest.mark.parametrize("megatron", [{"bf16": True}, {"use_distributed_optimizer": True}], ids=["bf16", "distributed"])
def test_swapping_does_not_touch_training(folders: dict[str, str], megatron: dict[str, Any]) -> None:
    """A reference that weighs nothing changes nothing, and a policy that is its own reference has no KL."""
    idle = {"advantage_estimator": "reinforce_plus_plus_baseline"}
    plain = train(folders["policy"], 3, megatron=megatron, algorithm=idle)
    other = {"ref_load": folders["other"]}
    beside = train(folders["policy"], 3, megatron=megatron, algorithm=idle | KL | {"kl_loss_coef": 1e-30}, model=other)
    assert beside["scores"] == plain["scores"]
    assert [row["train/grad_norm"] for row in beside["rows"]] == [row["train/grad_norm"] for row in plain["rows"]]
    assert kl_of(train(folders["policy"], 1, megatron=megatron, algorithm=KL)) == [0.0]


def test_the_reference_follows_the_policy(folders: dict[str, str]) -> None:
    trained = train(folders["policy"], 5, algorithm=KL, model={"ref_update_interval": 2})
    assert [value == 0.0 for value in kl_of(trained)] == [True, False, True, False, True]


@pytest.mark.parametrize("cut", [2, 3], ids=["when due", "in between"])
def test_a_resume_has_the_same_reference(folders: dict[str, str], tmp_path: Path, cut: int) -> None:
    def run(steps: int, **more: Any) -> dict[str, Any]:
        return train(folders["policy"], steps, algorithm=KL, model={"ref_update_interval": 2}, **more)

    whole = run(5, losses=tmp_path / "whole")
    start = run(cut, save=tmp_path / "saved")
    rest = run(5 - cut, first=cut, resume=tmp_path / "saved", losses=tmp_path / "rest")
    rows = [without_times(row) for row in start["rows"] + rest["rows"]]
    assert rows == [without_times(row) for row in whole["rows"]]
    assert rest["scores"] == whole["scores"][cut:]
    for step in range(cut, 5):
        mine, theirs = (read_loss_inputs(tmp_path / name, step).columns["ref_logp"] for name in ("rest", "whole"))
        np.testing.assert_array_equal(mine, theirs)


def test_a_reference_that_stayed_is_not_in_the_checkpoint(folders: dict[str, str], tmp_path: Path) -> None:
    from vime_core.training.rank_file import read_rank

    for steps, name in ((2, "stayed"), (3, "moved")):
        train(folders["policy"], steps, algorithm=KL, model={"ref_update_interval": 2}, save=tmp_path / name)
        kept = [tensor for tensor in read_rank(tmp_path / name, 0)[0] if tensor.startswith("ref.")]
        assert bool(kept) == (name == "moved")


def test_another_architecture_is_refused(folders: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--ref-load .*num_hidden_layers: 2, 1"):
        train(folders["policy"], 1, algorithm=KL, model={"ref_load": folders["shallow"]})


# several ranks ---------------------------------------------------------------------------------------------------
def on_ranks(folders: dict[str, str], losses: Path, layout: dict[str, Any], world: int) -> dict[str, Any]:
    sections = {
        "megatron": layout,
        "algorithm": KL,
        "model": {"ref_load": folders["other"], "ref_update_interval": 2},
        "train": {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 64},
    }
    return spawn(folders["policy"], json.dumps(sections), world, 3, json.dumps({"losses": str(losses)}))


@lru_cache
def spawn(folder: str, sections: str, world: int, steps: int, more: str) -> dict[str, Any]:
    trained: dict[str, Any] = result_of(
        "tests.support.train_ranks", folder, sections, str(world), str(steps), "0", more
    )
    return trained


def assert_same_inputs(got: LossInputs, want: LossInputs) -> None:
    """The columns that models computed, over any layout, and everything that follows from them."""
    assert got.columns.keys() == want.columns.keys()
    for name, column in want.columns.items():
        np.testing.assert_allclose(got.columns[name], column, rtol=2e-5, atol=2e-5, err_msg=name)
    for ours, theirs in zip(got.facts["optimizer_steps"], want.facts["optimizer_steps"], strict=True):
        assert ours == pytest.approx(theirs, rel=2e-5, abs=1e-7)


@pytest.fixture(scope="module")
def one(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("one")
    return folder, on_ranks(folders, folder, {}, 1)


LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {},
    "dp2-distributed": {"use_distributed_optimizer": True},
    "tp2": {"tensor_model_parallel_size": 2},
    "tp2-sp": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"pipeline_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_two_ranks_equal_one(
    folders: dict[str, str], tmp_path: Path, one: tuple[Path, dict[str, Any]], layout: dict[str, Any]
) -> None:
    losses, want = one
    got = on_ranks(folders, tmp_path, layout, 2)
    for step, (ours, theirs) in enumerate(zip(got["rows"], want["rows"], strict=True)):
        for name in ("kl_loss", "ref_kl", "loss", "grad_norm", "train_rollout_logprob_abs_diff"):
            assert ours[f"train/{name}"] == pytest.approx(theirs[f"train/{name}"], rel=2e-5, abs=1e-7), (step, name)
        assert_same_inputs(read_loss_inputs(tmp_path, step), read_loss_inputs(losses, step))
    assert got["score"] == pytest.approx(want["score"], rel=2e-5)
    assert kl_of(want)[0] > 0
    assert kl_of(got)[2] == kl_of(want)[2] == 0.0  # the reference has just become the policy
