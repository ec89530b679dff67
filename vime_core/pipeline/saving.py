"""A checkpoint of the whole run: every rank's part, the data buffer and the ledger, committed by one rename."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.api.errors import ConfigError
from vime_core.training import checkpoint

if TYPE_CHECKING:
    from vime_core.config.sections import Config
    from vime_core.pipeline.stack import RunStack


def save_checkpoint(config: Config, stack: RunStack, step: int) -> Path:
    """Save the state after ``step`` finished steps; a kill at any moment leaves the older checkpoint valid."""
    if config.model.save is None:
        raise ConfigError("save_interval is set but there is nowhere to save to: give --save")
    root = Path(config.model.save)
    folder = checkpoint.begin(root, step)
    nbytes = stack.trainer.save(str(folder))
    meta = {"layout": checkpoint.layout_of(config), "data": stack.rollout.state(), "bytes": nbytes, "format": 1}
    return checkpoint.commit(root, step, meta, config.model.keep_checkpoints)
