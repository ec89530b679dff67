"""Files of loss inputs come back as they were written, and say what is wrong when they cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vime_core.api.errors import DataError
from vime_core.observe.loss_inputs import LossInputs, path_of, read_loss_inputs, steps_of, write_loss_inputs

INPUTS = LossInputs(
    {
        "mask": np.array([True, False, True]),
        "logp": np.array([-0.5, np.nan, -1.25], dtype=np.float32),
        "weight": np.array([1 / 3, 0, 1 / 3]),
        "group": np.array([7]),
        "strided": np.arange(6)[::2],
    },
    {"algorithm": "grpo", "options": {"eps_clip": 0.2, "eps_clip_c": None}, "terms": {"kl": float("inf")}},
)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    write_loss_inputs(tmp_path / "loss", 12, INPUTS)
    back = read_loss_inputs(tmp_path / "loss", 12)
    assert back.columns.keys() == INPUTS.columns.keys()
    for name, column in INPUTS.columns.items():
        assert back.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(back.columns[name], column)
    assert back.facts == {"format": 1, "step": 12, **INPUTS.facts}
    assert [p.name for p in (tmp_path / "loss").iterdir()] == ["step_000012.safetensors"]


def test_a_missing_step_names_those_there_are(tmp_path: Path) -> None:
    for step in (3, 1):
        write_loss_inputs(tmp_path, step, INPUTS)
    (tmp_path / "step_000009.partial").write_bytes(b"")
    assert steps_of(tmp_path) == [1, 3]
    with pytest.raises(DataError, match=r"step 2 \(there are: 1, 3\)"):
        read_loss_inputs(tmp_path, 2)
    with pytest.raises(DataError, match="there are: none"):
        read_loss_inputs(tmp_path / "elsewhere", 0)


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0not json at all.", b"x" * 100])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path_of(tmp_path, 0).write_bytes(content)
    with pytest.raises(DataError, match="not a file of loss inputs"):
        read_loss_inputs(tmp_path, 0)


def test_a_file_without_facts_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2)}, str(path_of(tmp_path, 0)))
    with pytest.raises(DataError, match="not a file of loss inputs"):
        read_loss_inputs(tmp_path, 0)


def test_another_format_is_refused(tmp_path: Path) -> None:
    write_loss_inputs(tmp_path, 0, LossInputs({"x": np.zeros(1)}, {"format": 2}))
    with pytest.raises(DataError, match="has format 2"):
        read_loss_inputs(tmp_path, 0)
