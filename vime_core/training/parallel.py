"""Process groups of the trainer: torch.distributed, Megatron's parallel state, and its random-number streams.

``init_parallel`` is the only place that builds them; everything afterwards asks :func:`layout`. Both calls are
collective over all trainer ranks and have the deadline ``distributed_timeout_minutes``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from vime_core.api import ConfigError, DeadlineError

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config


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

    @property
    def is_last_stage(self) -> bool:
        """Only these ranks have log-probs and losses."""
        return self.pp_rank == self.pp_size - 1

    @property
    def keeps_records(self) -> bool:
        """One rank only, of those that know the loss."""
        return self.is_last_stage and self.dp_rank == self.tp_rank == self.cp_rank == 0

    @property
    def pad_multiple(self) -> int:
        """What a packed row's whole length must divide by (argument of ``pack``): each context rank's share is cut
        again over the tensor-parallel ranks under sequence parallelism, and for expert dispatch."""
        zigzag = 2 * self.cp_size if self.cp_size > 1 else 1
        return math.lcm(zigzag, self.cp_size * self.tp_size)


def init_parallel(config: Config, device: DeviceBackend, rank: int, world: int, address: str) -> ParallelLayout:
    """Adapt Megatron to the device, build the process groups and seed the random streams. Once a process.

    Args:
        address: ``host:port`` where the ranks meet; rank 0 listens there.

    Raises:
        ConfigError: the sizes do not multiply to ``world``.
        DeadlineError: the other ranks did not arrive in ``distributed_timeout_minutes``.
    """
    check_sizes(config, world)
    device.adapt_megatron()
    _rendezvous(config, device, rank, world, address)
    from megatron.core import parallel_state, tensor_parallel

    megatron = config.megatron
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=megatron.tensor_model_parallel_size,
        pipeline_model_parallel_size=megatron.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=config.megatron_extra.get("virtual_pipeline_model_parallel_size"),
        context_parallel_size=megatron.context_parallel_size,
        expert_model_parallel_size=megatron.expert_model_parallel_size,
        expert_tensor_parallel_size=megatron.expert_tensor_parallel_size,
        distributed_timeout_minutes=config.cluster.distributed_timeout_minutes,
    )
    # One stage one seed, so that its ranks draw alike; other stages draw differently.
    seed = config.run.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    device.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    return layout()


def check_sizes(config: Config, world: int) -> None:
    """Raises ConfigError, with all violations, when the layout does not fit ``world`` ranks."""
    m = config.megatron
    violations = []
    if world % config.model_parallel_size:
        violations.append(
            f"{world} trainer ranks do not divide by tensor {m.tensor_model_parallel_size} x pipeline "
            f"{m.pipeline_model_parallel_size} x context {m.context_parallel_size} parallel sizes"
        )
    expert = (m.expert_tensor_parallel_size or m.tensor_model_parallel_size) * m.expert_model_parallel_size
    if world % (expert * m.pipeline_model_parallel_size):
        violations.append(
            f"{world} trainer ranks do not divide by expert tensor x expert x pipeline parallel sizes "
            f"({expert} x {m.pipeline_model_parallel_size})"
        )
    if m.sequence_parallel and m.tensor_model_parallel_size == 1:
        violations.append("sequence_parallel needs tensor_model_parallel_size > 1")
    if violations:
        raise ConfigError(violations)


def _rendezvous(config: Config, device: DeviceBackend, rank: int, world: int, address: str) -> None:
    import torch.distributed as dist

    from vime_core.runtime import listen_on_given_hosts

    listen_on_given_hosts()
    minutes = config.cluster.distributed_timeout_minutes
    try:
        dist.init_process_group(
            device.collective,
            init_method=f"tcp://{address}",
            rank=rank,
            world_size=world,
            timeout=timedelta(minutes=minutes),
        )
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        raise DeadlineError(
            f"trainer rank {rank} of {world}: not all ranks met at {address} within {minutes:g} min "
            f"(distributed_timeout_minutes); see the log of the missing ranks ({error})"
        ) from error


def layout() -> ParallelLayout:
    """The layout of this process, after :func:`init_parallel`."""
    import torch.distributed as dist
    from megatron.core import parallel_state as ps

    return ParallelLayout(
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        tp_rank=ps.get_tensor_model_parallel_rank(),
        tp_size=ps.get_tensor_model_parallel_world_size(),
        pp_rank=ps.get_pipeline_model_parallel_rank(),
        pp_size=ps.get_pipeline_model_parallel_world_size(),
        cp_rank=ps.get_context_parallel_rank(),
        cp_size=ps.get_context_parallel_world_size(),
        dp_rank=ps.get_data_parallel_rank(),
        dp_size=ps.get_data_parallel_world_size(),
    )


def destroy_parallel() -> None:
    """Tear everything down, so that ``init_parallel`` may be called again. Safe to call when nothing was built."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.destroy_global_memory_buffer()
    dist.destroy_process_group()
