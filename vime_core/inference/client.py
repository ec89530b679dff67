"""How the rollout process reaches the engines: plain data that becomes a client where it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.api import GenerationClient


@dataclass(frozen=True)
class ClientSpec:
    """Two transports behind one interface: straight into the engine's process, or HTTP through the router.

    Attributes:
        transport: "direct" or "router".
        actor: (name, namespace) of the Ray actor, for the direct transport.
        router: URL of the router.
        engines: URL of every engine, for what must reach each of them.
        concurrency: requests in flight, all engines together.
        retries: times a request is sent again after a connection error.
        timeout: deadline of one generation, seconds.
    """

    transport: str
    actor: tuple[str, str] = ("", "")
    router: str = ""
    engines: tuple[str, ...] = ()
    concurrency: int = 512
    retries: int = 3
    timeout: float = 1800.0

    def connect(self) -> GenerationClient:
        """A client for the calling process. Call it inside the event loop that will use it.

        Raises:
            EngineError: the engine's actor does not exist.
        """
        if self.transport == "direct":
            from vime_core.inference.direct_client import DirectClient

            return DirectClient.connect(self)
        from vime_core.inference.http_client import HttpClient

        return HttpClient(self)
