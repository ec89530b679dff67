"""A teacher out of a checkpoint: its log-probs are its own to the bit, and the advantages carry its term."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.one_rank import train
from vime_core.api.errors import ConfigError
from vime_core.observe.loss_inputs import read_loss_inputs

OPD = {"use_opd": True, "opd_type": "megatron", "opd_kl_coef": 0.5}


def test_the_teacher_speaks_as_itself_at_the_students_temperature(folders: dict[str, str], tmp_path: Path) -> None:
    hot = {"rollout_temperature": 0.7}
    student = {"algorithm": OPD | {"use_kl_loss": True}, "model": {"opd_teacher_load": folders["other"]}}
    train(folders["policy"], 2, losses=tmp_path / "student", rollout=hot, **student)
    for step in range(2):
        train(folders["other"], 1, first=step, losses=tmp_path / "teacher", rollout=hot)
        said = read_loss_inputs(tmp_path / "teacher", step).columns["logp"]
        seen = read_loss_inputs(tmp_path / "student", step).columns
        np.testing.assert_array_equal(seen["teacher_logp"], said)
        assert np.array_equal(seen["ref_logp"], seen["logp"]) == (step == 0)


def test_advantages_get_the_teachers_term(folders: dict[str, str], tmp_path: Path) -> None:
    """The policy is the same in both runs' first step, so the advantages differ by the term alone."""
    train(folders["policy"], 1, losses=tmp_path / "plain")
    train(
        folders["policy"],
        1,
        losses=tmp_path / "taught",
        algorithm=OPD,
        model={"opd_teacher_load": folders["other"]},
    )
    plain, taught = (read_loss_inputs(tmp_path / name, 0).columns for name in ("plain", "taught"))
    trained = taught["trained"]
    term = -0.5 * (taught["old_logp"] - taught["teacher_logp"])
    np.testing.assert_allclose((taught["advantage"] - plain["advantage"])[trained], term[trained], atol=1e-6)
    assert np.abs(term[trained]).max() > 0.1


def test_a_policy_that_is_its_own_teacher_learns_nothing_from_it(folders: dict[str, str]) -> None:
    alone = {"algorithm": OPD | {"advantage_estimator": "opd"}, "model": {"opd_teacher_load": folders["policy"]}}
    trained = train(folders["policy"], 1, **alone)
    assert trained["rows"][0]["train/advantages/max"] == trained["rows"][0]["train/advantages/min"] == 0.0
    assert trained["rows"][0]["train/grad_norm"] == 0.0


def test_a_teacher_of_another_architecture_is_refused(folders: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--opd-teacher-load .*num_hidden_layers: 2, 1"):
        train(folders["policy"], 1, algorithm=OPD, model={"opd_teacher_load": folders["shallow"]})
    with pytest.raises(ConfigError, match="give --opd-teacher-load"):
        train(folders["policy"], 1, algorithm=OPD)
