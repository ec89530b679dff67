"""Weights over TCP by gloo, from host memory to host memory: trainer and engines anywhere."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.api import SyncError
from vime_core.weights.channel import Channel, Rendezvous
from vime_core.weights.rendezvous import address_towards
from vime_core.weights.sync import StreamSync

if TYPE_CHECKING:
    import torch

#: bytes of a line that is told
_LINE = 512


class GlooChannel(Channel):
    """One gloo group for the run. It touches no global torch.distributed state, so it lives beside Megatron's groups
    and inside a vLLM worker."""

    def __init__(self, terms: Rendezvous, rank: int) -> None:
        import torch.distributed as dist

        host, port = terms["host"], terms["port"]
        limit = datetime.timedelta(seconds=terms["timeout"])
        store = dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        # the interface that reaches the meeting point; by default gloo asks what the host name resolves to
        options._devices = [gloo.create_device(hostname=address_towards(host, port))]
        options._timeout = limit
        self._group: Any = gloo(dist.PrefixStore(terms["group"], store), rank, terms["world"], options)
        self._options: Any = dist.BroadcastOptions()
        self._options.rootRank, self._options.rootTensor = 0, 0

    def empty(self, size: int) -> torch.Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8, device="cpu")  # whatever device a worker loads with

    def broadcast(self, flat: torch.Tensor) -> None:
        if not self.alive:
            raise SyncError("the gloo channel is closed")
        try:
            self._group.broadcast([flat], self._options).wait()
        except RuntimeError as error:
            self.alive = False
            raise SyncError(f"gloo: {str(error).splitlines()[0]}") from error

    def tell(self, text: str) -> None:
        """A line from rank 0 to everybody."""
        import torch

        self.broadcast(torch.frombuffer(bytearray(text.encode().ljust(_LINE, b"\0")), dtype=torch.uint8))

    def told(self) -> str:
        flat = self.empty(_LINE)
        self.broadcast(flat)
        return bytes(flat.tolist()).rstrip(b"\0").decode()

    def close(self) -> None:
        self._group, self.alive = None, False


class GlooSync(StreamSync):
    kind: ClassVar[str] = "gloo"
