"""One rank's part of a checkpoint: tensors as safetensors, the rest as JSON, and the digests of both, which are
compared before anything of a run is overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import CheckpointError

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 24


def write_rank(folder: Path, rank: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> int:
    """Write this rank's tensors and JSON state; returns the bytes written. Everything is on disk when it returns."""
    from safetensors.torch import save_file

    path = folder / f"{_stem(rank)}.safetensors"
    # safetensors refuses tensors that share memory (tied weights, buffers of a flat gradient buffer)
    save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, str(path))
    sync_file(path)
    rest = folder / f"{_stem(rank)}.json"
    write_json(rest, state)
    write_json(folder / f"{_stem(rank)}.digests.json", {file.name: _described(file) for file in (path, rest)})
    return path.stat().st_size


def digests_of(folder: Path, ranks: int) -> dict[str, Any]:
    """Bytes and digest of each rank's files, by name.

    Raises:
        CheckpointError: a rank has not written its part.
    """
    found: dict[str, Any] = {}
    for rank in range(ranks):
        listed = folder / f"{_stem(rank)}.digests.json"
        if not listed.is_file():
            raise CheckpointError(f"{folder}: rank {rank} of {ranks} has not written its part; it is no checkpoint")
        found |= json.loads(listed.read_text())
    return found


def read_rank(folder: Path, rank: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and JSON state of a rank.

    Raises:
        CheckpointError: a file is missing or not as it was written.
    """
    from safetensors.torch import load_file

    listed = folder / f"{_stem(rank)}.digests.json"
    written = json.loads(listed.read_text()) if listed.is_file() else None  # None: from before there were digests
    paths = [folder / f"{_stem(rank)}{suffix}" for suffix in (".safetensors", ".json")]
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: {DAMAGED}")
        if written is not None and (found := _described(path)) != written.get(path.name):
            raise CheckpointError(f"{path} is {found}, it was written as {written.get(path.name)}: {DAMAGED}")
    return load_file(str(paths[0])), json.loads(paths[1].read_text())


def require_whole(folder: Path, files: Mapping[str, Any]) -> None:
    """Every file is there with all its bytes; what is in them is compared by the rank that reads it.

    Raises:
        CheckpointError: one is not.
    """
    for name, written in files.items():
        path = folder / name
        have = path.stat().st_size if path.is_file() else None
        if have != written["bytes"]:
            found = "missing" if have is None else f"{have} bytes long, of {written['bytes']}"
            raise CheckpointError(f"{path} is {found}: {DAMAGED}")


def require_same(what: Path | str, mine: Mapping[str, torch.Tensor], kept: Mapping[str, torch.Tensor]) -> None:
    """Names and shapes agree, both ways.

    Args:
        what: has ``kept``, for the message. mine: of this run's model.

    Raises:
        CheckpointError: they do not.
    """
    faults = [f"lacks {name}" for name in sorted(mine.keys() - kept.keys())]
    faults += [f"has {name}, which this run's model has not" for name in sorted(kept.keys() - mine.keys())]
    faults += [
        f"has {name} as {list(kept[name].shape)}, this run's is {list(mine[name].shape)}"
        for name in sorted(mine.keys() & kept.keys())
        if kept[name].shape != mine[name].shape
    ]
    if faults:
        more = f" ({len(faults)} differences)" if len(faults) > 3 else ""
        raise CheckpointError(f"{what} is of another model than --hf-checkpoint: it {'; '.join(faults[:3])}{more}")


def sync_file(path: Path) -> None:
    """On disk when it returns; a folder's entries, too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=True))
    sync_file(path)


DAMAGED = "the checkpoint is damaged, choose another with --ckpt-step"


def _stem(rank: int) -> str:
    return f"rank_{rank:05d}"


def _described(path: Path) -> dict[str, Any]:
    import xxhash

    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            state.update(piece)
    return {"bytes": path.stat().st_size, "xxh3": state.hexdigest()}
