"""A gloo group made for one transfer.

It touches no global torch.distributed state, so it lives beside Megatron's groups and inside a vLLM worker, and an
engine that was restarted simply joins the next one.
"""

from __future__ import annotations

import datetime
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


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


class GlooLink:
    """Rank 0 sends, the others receive.

    Args:
        source: of the manifest: ``host`` and ``port`` of the meeting point, name of the ``group``, its size ``world``,
            ``bucket`` bytes a message, ``timeout`` seconds for everybody to join and for each message.
    """

    def __init__(self, source: Mapping[str, Any], rank: int) -> None:
        import torch.distributed as dist

        host, port = source["host"], source["port"]
        self._bucket: int = source["bucket"]
        limit = datetime.timedelta(seconds=source["timeout"])
        store = dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        # the interface that reaches the meeting point; by default gloo asks what the host name resolves to
        options._devices = [gloo.create_device(hostname=address_towards(host, port))]
        options._timeout = limit
        self._group: Any = gloo(dist.PrefixStore(source["group"], store), rank, source["world"], options)

    def broadcast(self, flat: torch.Tensor) -> None:
        """[n] uint8 from rank 0 into everybody's ``flat``, a bucket at a time."""
        import torch.distributed as dist

        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        for start in range(0, flat.numel(), self._bucket):
            self._group.broadcast([flat[start : start + self._bucket]], options).wait()


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to ``host``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return probe.getsockname()[0]
