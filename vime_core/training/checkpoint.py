"""Checkpoints: a folder a step, one safetensors file a rank, whole or absent.

``step_00000012.partial/`` is filled by all ranks, then renamed to ``step_00000012/`` by the driver: a folder with the
final name is complete, whatever was killed when, and its ``meta.json`` has the digests of all files in it and its own.
A run that goes on from an earlier step sets the later ones aside: they belong to the run of before. Tensors are
safetensors and everything else is JSON, so reading a
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
from vime_core.training.rank_file import digests_of, require_whole, sync_file, write_json

if TYPE_CHECKING:
    from vime_core.config import Config, ModelSection

_NAME = re.compile(r"step_(\d{8})$")
_META, _REPLACED, _DROPPED = "meta.json", ".replaced", ".dropped"


def partial(root: Path, step: int) -> Path:
    return root / f"step_{step:08d}.partial"


def final(root: Path, step: int) -> Path:
    return root / f"step_{step:08d}"


def begin(root: Path, step: int) -> Path:
    """An empty folder for the ranks to write into."""
    _recover(root)
    folder = partial(root, step)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def abandon(root: Path, step: int) -> None:
    """Leave nothing of a checkpoint that was begun and will not be committed."""
    shutil.rmtree(partial(root, step), ignore_errors=True)


def commit(root: Path, step: int, meta: Mapping[str, Any], keep: int) -> Path:
    """Make the checkpoint valid, atomically, then drop all but the newest ``keep`` of this run.

    Raises:
        CheckpointError: a rank has not written its part.
    """
    folder, target = partial(root, step), final(root, step)
    whole = _as_read({"step": step, **meta, "files": digests_of(folder, meta["layout"]["ranks"])})
    write_json(folder / _META, {**whole, "digest": _digest(whole)})
    # before the new one has its name: whatever is killed when, the newest is never the run's of before
    for later in (other for other in steps(root) if other > step):
        aside = final(root, later).with_suffix(".superseded")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(final(root, later), aside)
    replaced = target.with_suffix(_REPLACED)
    if target.exists():
        os.rename(target, replaced)
    os.rename(folder, target)
    sync_file(root)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in sorted(steps(root))[:-keep] if keep > 0 else []:
        _delete(final(root, old))
    return target


def _delete(folder: Path) -> None:
    """Never half of it under its name."""
    dropped = folder.with_suffix(_DROPPED)
    os.rename(folder, dropped)
    shutil.rmtree(dropped)


def _recover(root: Path) -> None:
    """A kill between the two renames of a step that was saved again leaves its former checkpoint under another name;
    one while an old step was deleted leaves the rest of that."""
    for dropped in root.glob(f"step_*{_DROPPED}"):
        shutil.rmtree(dropped)
    for replaced in root.glob(f"step_*{_REPLACED}"):
        target = replaced.with_suffix("")
        if target.exists():
            shutil.rmtree(replaced)
        else:
            os.rename(replaced, target)


def _complete(root: Path) -> list[int]:
    """:func:`steps`, with what a kill left under another name."""
    _recover(root)
    return steps(root)


def steps(root: Path) -> list[int]:
    """Steps of the complete checkpoints in ``root``."""
    if not root.is_dir():
        return []
    found = [int(m.group(1)) for p in root.iterdir() if (m := _NAME.match(p.name)) and (p / _META).is_file()]
    return sorted(found)


def find(root: str, step: int | None) -> Path:
    """The checkpoint of ``step``, or the newest.

    Raises:
        CheckpointError: there is none; the message lists those that are there.
    """
    folder = Path(root)
    have = _complete(folder)
    if step is None and have:
        return final(folder, have[-1])
    if step in have:
        return final(folder, step)
    wanted = "no complete checkpoint" if step is None else f"no complete checkpoint of step {step}"
    listed = ", ".join(map(str, have)) or "none"
    raise CheckpointError(f"{wanted} in {folder}; complete ones: {listed}. Give --load a folder that --save wrote")


def resumed_from(model: ModelSection) -> Path | None:
    """The checkpoint that a run goes on from; None where it begins: without ``--load``, or where that is the folder
    of its own ``--save`` and nothing is in it yet.

    Raises:
        CheckpointError: as :func:`find`.
    """
    if not model.load:
        return None
    own = model.save is not None and Path(model.save).resolve() == Path(model.load).resolve()
    if own and model.ckpt_step is None and not _complete(Path(model.load)):
        return None
    return find(model.load, model.ckpt_step)


def read_meta(folder: Path) -> dict[str, Any]:
    """Raises:
    CheckpointError: it cannot be read, or was changed; names the other complete checkpoints.
    """
    path = folder / _META
    try:
        meta: dict[str, Any] = dict(json.loads(path.read_text()))
        digest = meta.pop("digest", None)  # absent in one that was written before there were digests
        problem = "" if digest in (None, _digest(meta)) and "layout" in meta else "it is not as it was written"
    except (OSError, ValueError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    if not problem:
        return meta
    others = [step for step in steps(folder.parent) if final(folder.parent, step) != folder]
    instead = f"choose another with --ckpt-step: {', '.join(map(str, others))}" if others else "there is no other one"
    raise CheckpointError(f"{path} cannot be read ({problem}): the checkpoint is damaged; {instead}")


def _as_read(meta: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back, so that both ends digest the same."""
    read: dict[str, Any] = json.loads(json.dumps(meta, allow_nan=True))
    return read


def _digest(meta: Mapping[str, Any]) -> str:
    import xxhash

    return xxhash.xxh3_128(json.dumps(meta, sort_keys=True, allow_nan=True).encode()).hexdigest()


def layout_of(config: Config) -> dict[str, int]:
    """What the rank files depend on."""
    m = config.megatron
    return {
        "ranks": config.trainer_ranks,
        "tensor": m.tensor_model_parallel_size,
        "pipeline": m.pipeline_model_parallel_size,
        "context": m.context_parallel_size,
        "expert": m.expert_model_parallel_size,
        "expert_tensor": m.expert_tensor_parallel_size or m.tensor_model_parallel_size,
        "virtual": int(config.megatron_extra.get("virtual_pipeline_model_parallel_size") or 1),
        "bf16": int(m.bf16),
        "distributed_optimizer": int(m.use_distributed_optimizer),
    }


def check_layout(folder: Path, layout: Mapping[str, int]) -> dict[str, Any]:
    """The checkpoint's meta data, after making sure that all of it is there and that its parallel layout is this run's.

    Raises:
        CheckpointError: naming the file, or both layouts.
    """
    meta = read_meta(folder)
    require_whole(folder, meta.get("files", {}))
    written = meta["layout"]  # an older one says less
    if written != {name: value for name, value in layout.items() if name in written}:
        raise CheckpointError(
            f"{folder} was saved with layout {meta['layout']}, this run has {dict(layout)}: resume with the same "
            "layout, or start from its Hugging Face export with --hf-checkpoint"
        )
    return meta
