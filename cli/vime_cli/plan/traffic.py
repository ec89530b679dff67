"""Bytes of one weight sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_cli.plan.parameters import whole
from vime_cli.plan.shape import ModelShape

if TYPE_CHECKING:
    from vime_core.config import Config


@dataclass(frozen=True)
class SyncTraffic:
    """payload: bytes of all weights under Hugging Face names. workers: engine workers, each of which gets the payload.
    buckets: messages that a carrier over a network cuts it into. steps: rollout steps between two syncs."""

    payload: int
    workers: int
    buckets: int
    steps: int

    @property
    def received(self) -> int:
        """By all workers together."""
        return self.payload * self.workers


def traffic(config: Config, shape: ModelShape, size: int) -> SyncTraffic | None:
    """size: bytes of an element. None where there is no engine."""
    if not config.needs_engines:
        return None
    payload = size * whole(shape)
    external = len(config.engine.rollout_external_engine_addrs)
    workers = config.num_engines * config.cluster.rollout_num_gpus_per_engine + external
    bucket = max(config.sync.update_weight_buffer_size, 1)
    return SyncTraffic(payload, workers, -(-payload // bucket), config.sync.update_weights_interval)
