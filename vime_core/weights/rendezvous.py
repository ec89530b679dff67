"""Where the two ends of a weight sync find one another."""

from __future__ import annotations

import socket
from typing import Any

from vime_core.runtime import bound_socket, serve_store


class RendezvousStore:
    """Where the members of a group find one another: a port kept from the start, and served once it is needed."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._socket = bound_socket(host)
        self.port: int = self._socket.getsockname()[1]
        self._store: Any = None

    def open(self) -> None:
        """Listen, on ``host`` alone. Idempotent."""
        if self._store is None:
            self._store = serve_store(self._socket)

    def close(self) -> None:
        self._store = None
        self._socket.close()


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to ``host``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return probe.getsockname()[0]
