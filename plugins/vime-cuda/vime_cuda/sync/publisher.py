"""The trainer's end of both syncs: the core's stream with this plugin's options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.weights import Connect, StreamPublisher
from vime_cuda.config import CudaOptions

if TYPE_CHECKING:
    from vime_core import Config


def publisher_of(config: Config, connect: Connect) -> StreamPublisher:
    options = config.plugins.get("cuda") or CudaOptions()
    return StreamPublisher.of(config, connect, deltas=options.delta)
