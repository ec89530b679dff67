"""A checkpoint of the whole run: every rank's part, the data buffer and the ledger, committed by one rename."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.api.errors import ConfigError
from vime_core.training import checkpoint

if TYPE_CHECKING:
    from vime_core.config.sections import Config
    from vime_core.pipeline.stack import Stack


def save_checkpoint(config: Config, stack: Stack, step: int) -> Path:
    """Save the state after ``step`` finished steps; a kill at any moment leaves the older checkpoint valid."""
    if config.model.save is None:
        raise ConfigError("save_interval is set but there is nowhere to save to: give --save")
    root = Path(config.model.save)
    folder = checkpoint.begin(root, step)
    nbytes = stack.trainer.save(str(folder))
    meta = {"layout": layout(config), "data": stack.rollout.state(), "bytes": nbytes, "format": 1}
    return checkpoint.commit(root, step, meta, config.model.keep_checkpoints)


def layout(config: Config) -> dict[str, int]:
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
