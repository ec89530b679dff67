"""How the rollout process reaches the engines: plain data that becomes a client where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vime_core.api import GenerationClient


class ClientSpec(Protocol):
    """One for each transport: straight into the engine's process, or HTTP through the router."""

    def connect(self) -> GenerationClient:
        """A client for the calling process. Call it inside the event loop that will use it.

        Raises:
            EngineError: the engine's actor does not exist.
        """
