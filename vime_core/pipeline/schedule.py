"""How many steps a run has, and where it starts: the one place that counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError

if TYPE_CHECKING:
    from vime_core.config import Config


@dataclass(frozen=True)
class Schedule:
    """Rollout steps ``first .. last - 1``; ``optimizer_steps`` of the whole run, whatever was resumed."""

    first: int
    last: int
    optimizer_steps: int


def schedule(config: Config, prompts_per_epoch: int, meta: Mapping[str, Any] | None) -> Schedule:
    """From the configuration, the size of the data and the checkpoint's meta data (None without one).

    Raises:
        ConfigError: the run would have no steps.
    """
    batch = config.rollout.rollout_batch_size or 1
    if config.rollout.num_rollout is not None:
        last = config.rollout.num_rollout
    else:
        last = prompts_per_epoch * (config.rollout.num_epoch or 0) // batch
    if config.rollout.start_rollout_id is not None:
        first = config.rollout.start_rollout_id
    else:
        first = meta["step"] if meta else 0
    if last < 1:
        raise ConfigError(
            f"the run has no steps: {config.rollout.num_epoch} epochs of {prompts_per_epoch} prompts with "
            f"rollout_batch_size {batch}; give --num-rollout or a smaller --rollout-batch-size"
        )
    if first >= last:
        raise ConfigError(
            f"nothing to do: the run ends at step {last} and would start at step {first}; raise --num-rollout"
        )
    updates = last * max(config.samples_per_step // max(config.global_batch, 1), 1)
    _check_warmup(config, updates)
    return Schedule(first, last, updates)


def _check_warmup(config: Config, updates: int) -> None:
    warmup, length = config.megatron.lr_warmup_iters, config.megatron.lr_decay_iters or updates
    constant = config.megatron.lr_decay_style == "constant"
    if warmup > length if constant else warmup >= length:
        raise ConfigError(
            f"lr_warmup_iters {warmup} leaves nothing of the schedule's {length} optimizer steps: lower "
            "--lr-warmup-iters or raise --lr-decay-iters"
        )
