"""A checkpoint is whole or it is none; retention follows the run and not the numbers; what was changed is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from vime_core.api.errors import CheckpointError
from vime_core.config.sections import ModelSection
from vime_core.training import checkpoint
from vime_core.training.rank_file import read_rank, require_same, write_rank

LAYOUT = {"ranks": 2, "tensor": 1}
TENSORS = {"model.0.weight": torch.arange(6.0).view(2, 3), "optimizer.0.0.param": torch.ones(6)}


def save(root: Path, step: int, keep: int = 2, ranks: tuple[int, ...] = (0, 1)) -> Path:
    folder = checkpoint.begin(root, step)
    for rank in ranks:
        write_rank(
            folder, rank, {name: x + step + rank for name, x in TENSORS.items()}, {"scheduler": {"num_steps": step}}
        )
    return checkpoint.commit(root, step, {"layout": LAYOUT, "data": {"row": step}}, keep)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)
    assert checkpoint.find(str(tmp_path), None) == folder
    assert checkpoint.check_layout(folder, LAYOUT)["data"] == {"row": 3}
    tensors, state = read_rank(folder, 1)
    assert torch.equal(tensors["model.0.weight"], TENSORS["model.0.weight"] + 4)
    assert state == {"scheduler": {"num_steps": 3}}


def test_a_rank_that_has_not_written_makes_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rank 1 of 2 has not written its part"):
        save(tmp_path, 3, ranks=(0,))
    assert checkpoint.steps(tmp_path) == []


@pytest.mark.parametrize("name", ["rank_00001.safetensors", "rank_00001.json"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_one_flipped_bit_is_found_before_anything_is_loaded(tmp_path: Path, name: str, damage: str) -> None:
    folder = save(tmp_path, 3)
    path = folder / name
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-3] ^= 4
        path.write_bytes(data)
    elif damage == "truncated":
        path.write_bytes(data[:-5])
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=rf"{path} is .*choose another with --ckpt-step"):
        read_rank(folder, 1)
    read_rank(folder, 0)
    if damage != "flipped":  # seen before a process is started
        with pytest.raises(CheckpointError, match=rf"{path} is .*choose another with --ckpt-step"):
            checkpoint.check_layout(folder, LAYOUT)


@pytest.mark.parametrize("damage", [lambda t: t[:40], lambda t: t.replace('"row": 4', '"row": 5'), lambda t: "[]"])
def test_a_damaged_description_names_the_file_and_the_other_checkpoints(tmp_path: Path, damage: Any) -> None:
    save(tmp_path, 3)
    path = save(tmp_path, 4) / "meta.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(CheckpointError, match=rf"{path} cannot be read .*choose another with --ckpt-step: 3$"):
        checkpoint.check_layout(path.parent, LAYOUT)


def test_checkpoints_from_before_there_were_digests_can_be_read(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)
    meta = json.loads((folder / "meta.json").read_text())
    del meta["digest"], meta["files"]
    for listed in folder.glob("*.digests.json"):
        listed.unlink()
    (folder / "meta.json").write_text(json.dumps(meta))
    assert checkpoint.check_layout(folder, {**LAYOUT, "bf16": 1})["step"] == 3
    assert read_rank(folder, 0)[1]["scheduler"]["num_steps"] == 3


def test_the_newest_of_this_run_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert checkpoint.steps(tmp_path) == [2, 3]


def test_a_run_that_goes_on_from_an_earlier_step_sets_the_later_ones_aside(tmp_path: Path) -> None:
    for step in (3, 7, 8):
        save(tmp_path, step, keep=5)
    assert save(tmp_path, 4, keep=2) == checkpoint.find(str(tmp_path), None)
    assert checkpoint.steps(tmp_path) == [3, 4]
    assert sorted(p.name for p in tmp_path.glob("*.superseded")) == [
        "step_00000007.superseded",
        "step_00000008.superseded",
    ]
    save(tmp_path, 5, keep=2)
    assert checkpoint.steps(tmp_path) == [4, 5]


class Killed(BaseException):
    """In place of SIGKILL: nothing of ours catches it."""


@pytest.mark.parametrize("again", [4, 3], ids=["goes-on", "saves-again"])
def test_whatever_is_killed_when_the_newest_is_whole_and_of_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """A kill before each change of a name, before each folder is deleted and in its middle."""
    survived, os_rename = False, os.rename
    for point in range(40):
        root = tmp_path / str(point)
        for step in (2, 3, 7):
            save(root, step, keep=9)
        left, committed = iter(range(point)), list[Path]()

        def change(call: Any, left: Any = left, committed: list[Path] = committed) -> Any:
            def killable(path: Any, *rest: Any, **options: Any) -> None:
                if next(left, None) is None:
                    raise Killed
                if call is shutil.rmtree and Path(path).exists() and next(left, None) is None:
                    next(iter(sorted(Path(path).glob("rank_*")))).unlink()
                    raise Killed
                call(path, *rest, **options)
                committed.extend([path] if Path(path).suffix == ".partial" and call is os_rename else [])

            return killable

        with monkeypatch.context() as patched:
            patched.setattr(checkpoint.os, "rename", change(os.rename))
            patched.setattr(checkpoint.shutil, "rmtree", change(shutil.rmtree))
            try:
                save(root, again, keep=1)
                survived = True
            except Killed:
                pass
        found = checkpoint.find(str(root), None)
        step = checkpoint.check_layout(found, LAYOUT)["step"]
        if survived:
            assert step == again
            break
        assert read_rank(found, 0)[1]["scheduler"]["num_steps"] == step
        assert step == again if committed else step in (3, 7)
    assert survived
    assert point > 5


def test_a_kill_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)
    folder.rename(folder.with_suffix(".replaced"))
    assert checkpoint.find(str(tmp_path), None) == folder
    shutil.copytree(folder, folder.with_suffix(".replaced"))
    checkpoint.begin(tmp_path, 4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00000003", "step_00000004.partial"]


def test_names_and_shapes_agree_both_ways() -> None:
    mine = {"model.0.a": torch.zeros(2), "model.0.b": torch.zeros(2, 3)}
    require_same("x", mine, dict(mine))
    for kept, message in (
        ({"model.0.a": torch.zeros(2)}, r"lacks model\.0\.b"),
        ({**mine, "model.0.c": torch.zeros(1)}, r"has model\.0\.c, which this run's model has not"),
        ({**mine, "model.0.b": torch.zeros(3, 2)}, r"has model\.0\.b as \[3, 2\], this run's is \[2, 3\]"),
    ):
        with pytest.raises(CheckpointError, match=message):
            require_same("x", mine, kept)


def test_a_run_begins_in_its_own_empty_folder_and_goes_on_from_it(tmp_path: Path) -> None:
    own = ModelSection(save=str(tmp_path / "a"), load=f"{tmp_path}/./a")
    assert checkpoint.resumed_from(own) is None
    folder = save(tmp_path / "a", 3)
    assert checkpoint.resumed_from(own).resolve() == folder
    assert checkpoint.resumed_from(ModelSection()) is None
    for model in (ModelSection(load=str(tmp_path / "b")), ModelSection(load=str(tmp_path / "a"), ckpt_step=9)):
        with pytest.raises(CheckpointError, match="no complete checkpoint"):
            checkpoint.resumed_from(model)


def test_what_was_begun_and_not_committed_leaves_nothing(tmp_path: Path) -> None:
    write_rank(checkpoint.begin(tmp_path, 3), 0, TENSORS, {})
    checkpoint.abandon(tmp_path, 3)
    assert list(tmp_path.iterdir()) == []
