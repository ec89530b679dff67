"""The core's stream over gloo with this plugin's choice of deltas: its transaction, for machines without an NPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vime_ascend.config import AscendOptions
from vime_core.weights import Connect, GlooChannel, GlooSync, StreamPublisher

if TYPE_CHECKING:
    from vime_core import Config


class StreamGlooSync(GlooSync):
    publisher: ClassVar[str] = "vime_ascend.sync.gloo:make_publisher"


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, GlooChannel)


def publisher_of(config: Config, connect: Connect) -> StreamPublisher:
    """The trainer's end of a run, whatever carries its bytes."""
    options = config.plugins.get("ascend") or AscendOptions()
    return StreamPublisher.of(config, connect, deltas=options.delta)
