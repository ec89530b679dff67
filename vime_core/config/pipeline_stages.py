"""How a model's layers are cut into pipeline stages, and what is wrong with a cut: the one rule for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.config.sections import Config

_FIRST, _LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
_LAYOUT = "pipeline_model_parallel_layout"
_COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_VIRTUAL = "virtual_pipeline_model_parallel_size"


def virtual_stages(config: Config) -> int:
    """Chunks of the model on each pipeline rank: 1 without virtual stages."""
    return int(config.megatron_extra.get(_VIRTUAL) or 1)


def stage_faults(config: Config, layers: int) -> list[str]:
    """What stands against cutting ``layers`` into the pipeline stages that the configuration asks for."""
    extra = config.megatron_extra
    stages = config.megatron.pipeline_model_parallel_size
    refused = [name for name in (_LAYOUT, *_COUNTED) if extra.get(name)]
    if refused:
        return [f"{', '.join(map(_flag, refused))}: not supported; use {_flag(_FIRST)} and {_flag(_LAST)}"]
    asked = [name for name in (_FIRST, _LAST, _VIRTUAL) if extra.get(name) is not None]
    if stages < 1 or (stages == 1 and not asked):
        return []
    if stages == 1:
        return [f"{', '.join(map(_flag, asked))}: needs --pipeline-model-parallel-size above 1"]
    return _cut_faults(layers, stages, extra, virtual_stages(config))


def _cut_faults(layers: int, stages: int, extra: Any, virtual: int) -> list[str]:
    ends = [int(extra[name]) for name in (_FIRST, _LAST) if extra.get(name) is not None]
    middle, ranks = layers - sum(ends), stages - len(ends)
    if min(ends, default=1) < 1 or bool(middle) != bool(ranks) or middle < 0 or (ranks and middle % ranks):
        if not ends:
            return [
                f"--pipeline-model-parallel-size {stages} does not divide the model's {layers} layers; choose a "
                f"divisor or give {_flag(_FIRST)} or {_flag(_LAST)}, so that the rest divides"
            ]
        given = " and ".join(f"{_flag(name)} {extra[name]}" for name in (_FIRST, _LAST) if extra.get(name) is not None)
        return [f"{given}: {middle} of the model's {layers} layers cannot be divided over {ranks} other stages"]
    sizes = {*ends, middle // ranks} if ranks else set(ends)
    uneven = sorted(size for size in sizes if size % virtual)
    if uneven:
        return [f"{_flag(_VIRTUAL)} {virtual} does not divide a pipeline stage of {uneven[0]} layers"]
    if virtual > 1 and len(sizes) > 1:
        return [f"{_flag(_VIRTUAL)}: needs pipeline stages of one size; leave out {_flag(_FIRST)} and {_flag(_LAST)}"]
    return []


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
