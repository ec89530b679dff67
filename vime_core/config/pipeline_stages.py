"""How a model's layers are cut into pipeline stages, and what is wrong with a cut: the one rule for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime_core.config.catalogue import as_flag

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
        return [f"{', '.join(map(as_flag, refused))}: not supported; use {as_flag(_FIRST)} and {as_flag(_LAST)}"]
    asked = [name for name in (_FIRST, _LAST, _VIRTUAL) if extra.get(name) is not None]
    if stages < 1 or (stages == 1 and not asked):
        return []
    if stages == 1:
        return [f"{', '.join(map(as_flag, asked))}: needs --pipeline-model-parallel-size above 1"]
    return _cut_faults(layers, stages, extra, virtual_stages(config))


def _cut_faults(layers: int, stages: int, extra: Any, virtual: int) -> list[str]:
    given = {name: int(extra[name]) for name in (_FIRST, _LAST) if extra.get(name) is not None}
    ends = given.values()
    middle, ranks = layers - sum(ends), stages - len(ends)
    if min(ends, default=1) < 1 or bool(middle) != bool(ranks) or middle < 0 or (ranks and middle % ranks):
        if not ends:
            return [
                f"--pipeline-model-parallel-size {stages} does not divide the model's {layers} layers; choose a "
                f"divisor or give {as_flag(_FIRST)} or {as_flag(_LAST)}, so that the rest divides"
            ]
        asked = " and ".join(f"{as_flag(name)} {size}" for name, size in given.items())
        return [f"{asked}: {middle} of the model's {layers} layers cannot be divided over {ranks} other stages"]
    sizes = {*ends, middle // ranks} if ranks else set(ends)
    uneven = sorted(size for size in sizes if size % virtual)
    if uneven:
        return [f"{as_flag(_VIRTUAL)} {virtual} does not divide a pipeline stage of {uneven[0]} layers"]
    if virtual > 1 and len(sizes) > 1:
        ends_out = f"leave out {as_flag(_FIRST)} and {as_flag(_LAST)}"
        return [f"{as_flag(_VIRTUAL)}: needs pipeline stages of one size; {ends_out}"]
    return []
