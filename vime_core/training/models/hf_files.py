"""Write a Hugging Face folder from a stream of tensors, in safetensors shards, beside the files it came with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: bytes of a shard
_SHARD_BYTES = 4 << 30


def write_weights(folder: Path, stream: Iterable[tuple[str, torch.Tensor]], shard_bytes: int = _SHARD_BYTES) -> None:
    """``model.safetensors``, or numbered shards and their index. Holds one shard in memory."""
    from safetensors.torch import save_file

    held: dict[str, torch.Tensor] = {}
    shards: list[list[str]] = []
    size = total = 0

    def flush() -> None:
        save_file(held, folder / f"shard-{len(shards)}.part", metadata={"format": "pt"})
        shards.append(list(held))
        held.clear()

    for name, tensor in stream:
        if held and size + tensor.nbytes > shard_bytes:
            flush()
            size = 0
        held[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    _name_shards(folder, shards, total)


def _name_shards(folder: Path, shards: list[list[str]], total: int) -> None:
    if len(shards) == 1:
        (folder / "shard-0.part").rename(folder / "model.safetensors")
        return
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for number, name in enumerate(names):
        (folder / f"shard-{number}.part").rename(folder / name)
    places = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def copy_companions(source: Path, folder: Path) -> None:
    """Configuration, tokenizer, chat template and code files: all but weights and their index."""
    weights = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
    for file in sorted(source.iterdir()):
        if file.is_file() and not file.name.endswith(weights):
            shutil.copyfile(file, folder / file.name)
