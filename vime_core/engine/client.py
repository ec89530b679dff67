"""The two transports behind one interface: straight into the engine's process, or HTTP through the router.

``ClientSpec`` is plain data: it travels to the rollout process, whose ``connect`` makes the client there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.interfaces.rollout import GenerateReply, GenerateRequest, GenerationClient


@dataclass(frozen=True)
class ClientSpec:
    """How to reach the engines.

    Attributes:
        transport: "direct" or "router".
        actors: (name, namespace) of the Ray actors, for the direct transport.
        router: URL of the router (or of the only engine).
        engines: URL of every engine, for what must reach each of them.
        concurrency: requests in flight, all engines together.
        retries: times a request is sent again after a connection error.
        timeout: deadline of one generation, seconds.
    """

    transport: str
    actors: tuple[tuple[str, str], ...] = ()
    router: str = ""
    engines: tuple[str, ...] = ()
    concurrency: int = 512
    retries: int = 3
    timeout: float = 1800.0

    def connect(self) -> GenerationClient:
        """A client for the calling process. Call it inside the event loop that will use it."""
        raise NotImplementedError
