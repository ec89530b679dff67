"""Process groups of the trainer: torch.distributed, Megatron's parallel state, and its random-number streams.

``init_parallel`` is the only place that builds them; everything afterwards asks :func:`layout`. Both calls are collective
over all trainer ranks and have the deadline ``distributed_timeout_minutes``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from vime_core.errors import ConfigError, DeadlineError

if TYPE_CHECKING:
    import torch.distributed

    from vime_core.config.sections import Config
    from vime_core.interfaces.device import DeviceBackend


@dataclass(frozen=True)
class ParallelLayout:
    """Where this rank stands. ``dp`` does not include context parallelism; ``dp_cp`` groups are Megatron's."""

    rank: int
    world: int
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    cp_rank: int
    cp_size: int
    dp_rank: int
    dp_size: int
    sequence_parallel: bool

    @property
    def is_last_stage(self) -> bool:
        """Only these ranks have log-probs and losses."""
        return self.pp_rank == self.pp_size - 1

    @property
    def pad_multiple(self) -> int:
        """What a packed row's whole length must divide by (argument of ``pack``)."""
        each = 2 * self.cp_size if self.cp_size > 1 else 1
        shard = self.cp_size * self.tp_size if self.sequence_parallel else 1
        return math.lcm(each, shard)


def init_parallel(
    config: Config, device: DeviceBackend, rank: int, world: int, master_addr: str, master_port: int
) -> ParallelLayout:
    """Build process groups and seed the random streams. Call once a process, after ``device.adapt_megatron()`` or not:
    it is called here too (idempotent).

    Raises:
        ConfigError: the sizes do not multiply to ``world``.
        DeadlineError: the other ranks did not arrive in ``distributed_timeout_minutes``.
    """
    raise NotImplementedError


def layout() -> ParallelLayout:
    """The layout of this process, after :func:`init_parallel`."""
    raise NotImplementedError


def destroy_parallel() -> None:
    """Tear everything down, so that ``init_parallel`` may be called again. Safe to call when nothing was built."""
    raise NotImplementedError
