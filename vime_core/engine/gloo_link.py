"""A gloo group made for one transfer.

It touches no global torch.distributed state, so it lives beside Megatron's groups and inside a vLLM worker, and an
engine that was restarted simply joins the next one.
"""

from __future__ import annotations

import datetime
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class GlooLink:
    """Rank 0 sends, the others receive. All of them have to join within ``timeout`` seconds."""

    def __init__(self, host: str, port: int, name: str, rank: int, world: int, timeout: float) -> None:
        import torch.distributed as dist

        limit = datetime.timedelta(seconds=timeout)
        store = dist.TCPStore(host, port, world_size=None, is_master=False, timeout=limit, wait_for_workers=False)
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        # the interface that reaches the store; by default gloo asks what the host name resolves to
        options._devices = [gloo.create_device(hostname=address_towards(host, port))]
        options._timeout = limit
        self._group: Any = gloo(dist.PrefixStore(name, store), rank, world, options)

    def broadcast(self, flat: torch.Tensor, bucket: int) -> None:
        """[n] uint8 from rank 0 into everybody's ``flat``, ``bucket`` bytes at a time."""
        import torch.distributed as dist

        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        for start in range(0, flat.numel(), bucket):
            self._group.broadcast([flat[start : start + bucket]], options).wait()


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to ``host``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return probe.getsockname()[0]
