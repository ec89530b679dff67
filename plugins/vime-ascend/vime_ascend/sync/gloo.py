"""The core's stream over gloo with this plugin's choice of deltas: its transaction, for machines without an NPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vime_ascend.config import AscendOptions
from vime_core.weights.stream import gloo
from vime_core.weights.stream.channel import Connect
from vime_core.weights.stream.sender import StreamPublisher

if TYPE_CHECKING:
    from vime_core import Config


class StreamGlooSync(gloo.StreamGlooSync):
    publisher: ClassVar[str] = "vime_ascend.sync.gloo:make_publisher"


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, StreamGlooSync.kind, gloo.GlooChannel)


def publisher_of(config: Config, kind: str, connect: Connect) -> StreamPublisher:
    """The trainer's end of a run, whatever carries its bytes."""
    options = config.plugins.get("ascend") or AscendOptions()
    return StreamPublisher.of(config, kind, connect, deltas=options.delta)
