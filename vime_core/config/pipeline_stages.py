"""How a model's layers are cut into pipeline stages: the one rule for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.config.sections import Config

#: Megatron's options for other cuts than stages of one size, one a rank
_OTHER_CUTS = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "virtual_pipeline_model_parallel_size",
)


def stage_faults(config: Config, layers: int) -> list[str]:
    """What stands against cutting ``layers`` into the pipeline stages that the configuration asks for."""
    extra = config.megatron_extra
    refused = ["--" + name.replace("_", "-") for name in _OTHER_CUTS if extra.get(name) not in (None, False)]
    if refused:
        return [f"{', '.join(refused)}: the trainer has pipeline stages of one size, one a rank, only; leave it out"]
    stages = config.megatron.pipeline_model_parallel_size
    if stages < 1 or layers % stages == 0:
        return []
    return [f"--pipeline-model-parallel-size {stages} does not divide the model's {layers} layers; choose a divisor"]
