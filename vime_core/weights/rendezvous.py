"""Where the two ends of a weight sync find one another."""

from __future__ import annotations

import socket
from typing import Any


class RendezvousStore:
    """Where the members of a group find one another: a port kept from the start, and served once it is needed."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind((host, 0))
        self.port: int = self._socket.getsockname()[1]
        self._store: Any = None

    def open(self) -> None:
        """Listen, on ``host`` alone. Idempotent."""
        import torch.distributed as dist

        if self._store is None:
            self._store = dist.TCPStore(
                self.host,
                self.port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=self._socket.detach(),
            )

    def close(self) -> None:
        self._store = None
        self._socket.close()


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to ``host``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return probe.getsockname()[0]
