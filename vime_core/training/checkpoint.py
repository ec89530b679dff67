"""Checkpoints: a folder a step, one safetensors file a rank, whole or absent.

``step_00000012.partial/`` is filled by all ranks, then renamed to ``step_00000012/`` by the driver: a folder with the
final name is complete, whatever was killed when. Tensors are safetensors and everything else is JSON, so reading a
checkpoint that came from elsewhere runs no code. Names and layouts are this rank's own, so a resume is exact and needs
the same parallel layout; another layout starts from the Hugging Face export instead.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import CheckpointError

if TYPE_CHECKING:
    import torch

    from vime_core.config import Config

_NAME = re.compile(r"step_(\d{8})$")


def partial(root: Path, step: int) -> Path:
    return root / f"step_{step:08d}.partial"


def final(root: Path, step: int) -> Path:
    return root / f"step_{step:08d}"


def begin(root: Path, step: int) -> Path:
    """An empty folder for the ranks to write into."""
    folder = partial(root, step)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def commit(root: Path, step: int, meta: Mapping[str, Any], keep: int) -> Path:
    """Make the checkpoint valid, atomically, then drop all but the newest ``keep``."""
    folder, target = partial(root, step), final(root, step)
    write_json(folder / "meta.json", {"step": step, **meta})
    replaced = target.with_suffix(".replaced")
    if target.exists():
        os.rename(target, replaced)
    os.rename(folder, target)
    _sync_folder(root)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in sorted(steps(root))[:-keep] if keep > 0 else []:
        shutil.rmtree(final(root, old))
    return target


def steps(root: Path) -> list[int]:
    """Steps of the complete checkpoints in ``root``."""
    if not root.is_dir():
        return []
    found = [int(m.group(1)) for p in root.iterdir() if (m := _NAME.match(p.name)) and (p / "meta.json").is_file()]
    return sorted(found)


def find(root: str, step: int | None) -> Path:
    """The checkpoint of ``step``, or the newest.

    Raises:
        CheckpointError: there is none; the message lists those that are there.
    """
    folder = Path(root)
    have = steps(folder)
    if step is None and have:
        return final(folder, have[-1])
    if step in have:
        return final(folder, step)
    wanted = "no complete checkpoint" if step is None else f"no complete checkpoint of step {step}"
    listed = ", ".join(map(str, have)) or "none"
    raise CheckpointError(f"{wanted} in {folder}; complete ones: {listed}. Give --load a folder that --save wrote")


def read_meta(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "meta.json").read_text())


def layout_of(config: Config) -> dict[str, int]:
    """What the rank files depend on."""
    m = config.megatron
    return {
        "ranks": config.trainer_ranks,
        "tensor": m.tensor_model_parallel_size,
        "pipeline": m.pipeline_model_parallel_size,
        "context": m.context_parallel_size,
        "expert": m.expert_model_parallel_size,
        "distributed_optimizer": int(m.use_distributed_optimizer),
    }


def check_layout(folder: Path, layout: Mapping[str, int]) -> dict[str, Any]:
    """The checkpoint's meta data, after making sure that its parallel layout is this run's.

    Raises:
        CheckpointError: naming both layouts.
    """
    meta = read_meta(folder)
    if meta["layout"] != dict(layout):
        raise CheckpointError(
            f"{folder} was saved with layout {meta['layout']}, this run has {dict(layout)}: resume with the same "
            "layout, or start from its Hugging Face export with --hf-checkpoint"
        )
    return meta


# one rank's part ---------------------------------------------------------------------------------------------
def write_rank(folder: Path, rank: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> int:
    """Write this rank's tensors and JSON state; returns the bytes written. Everything is on disk when it returns."""
    from safetensors.torch import save_file

    path = folder / f"rank_{rank:05d}.safetensors"
    # safetensors refuses tensors that share memory (tied weights, buffers of a flat gradient buffer)
    save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, str(path))
    _sync_file(path)
    write_json(folder / f"rank_{rank:05d}.json", state)
    return path.stat().st_size


def read_rank(folder: Path, rank: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    from safetensors.torch import load_file

    path = folder / f"rank_{rank:05d}.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint is damaged, choose another with --ckpt-step")
    return load_file(str(path)), json.loads((folder / f"rank_{rank:05d}.json").read_text())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=True))
    _sync_file(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_sync_folder = _sync_file
