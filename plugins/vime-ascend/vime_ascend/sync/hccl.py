"""HCCL as a carrier: one communicator between trainer rank 0 and all engine workers, made once and kept for the run.

The communicator is vllm-ascend's, because it stands beside torch.distributed and works in a vLLM worker. Where HCCL's
library cannot be loaded it disables itself without an error, and every broadcast then does nothing: such a one is
refused. Each broadcast is one flat run of bytes, whatever the tensors in it are. HCCL's calls cannot be interrupted, so
each runs in a thread that is left behind at the deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vime_ascend.sync.channel import Terms, within
from vime_ascend.sync.gloo import publisher_of
from vime_ascend.sync.receiver import StreamReceiver
from vime_ascend.sync.sender import StreamPublisher
from vime_ascend.sync.transaction import StreamSync
from vime_core.errors import SyncError, VimeError

if TYPE_CHECKING:
    import torch

    from vime_core import Config


class HcclChannel:
    """One end. Rank 0 chooses a port for HCCL's rendezvous and tells the others at the meeting point."""

    def __init__(self, terms: Terms, rank: int) -> None:
        from vime_ascend.runtime import load

        self._npu: Any = load()
        self._index: int = self._npu.current_device()
        self._deadline: float = terms["timeout"]
        self.alive = True
        self._comm: Any = within(
            self._deadline, f"HCCL, rank {rank} of {terms['world']}", lambda: self._join(terms, rank)
        )

    def empty(self, size: int) -> torch.Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8, device=f"npu:{self._index}")

    def broadcast(self, flat: torch.Tensor) -> None:
        if not self.alive:
            raise SyncError("the HCCL channel is closed")
        self._npu.synchronize()  # what fills the bucket ran on another stream
        try:
            within(self._deadline, "HCCL broadcast of weights", lambda: self._broadcast(flat))
        except BaseException as error:
            self.alive = False
            if isinstance(error, VimeError):
                raise
            raise SyncError(f"HCCL: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        comm, self._comm, self.alive = self._comm, None, False
        if comm is not None:
            comm.hccl.hcclCommDestroy(comm.comm)

    def _join(self, terms: Terms, rank: int) -> Any:
        from vllm.distributed.utils import StatelessProcessGroup
        from vllm_ascend.distributed.device_communicators.pyhccl import PyHcclCommunicator

        host, port = _rendezvous(terms, rank)
        with self._npu.device(self._index):
            group = StatelessProcessGroup.create(host, port, rank, terms["world"])
            comm = PyHcclCommunicator(group, device=self._index)
        return enabled(comm)

    def _broadcast(self, flat: torch.Tensor) -> None:
        with self._npu.device(self._index):
            self._comm.broadcast(flat, src=0)
            self._npu.synchronize()


def enabled(comm: Any) -> Any:
    """The communicator.

    Raises:
        SyncError: it has disabled itself: every call would return at once, and nothing would move.
    """
    if getattr(comm, "disabled", True) or not getattr(comm, "available", False):
        raise SyncError(
            "the HCCL communicator is disabled: libhccl.so could not be loaded, or the group has one member; source "
            "set_env.sh of CANN in the shell that starts vime, or set HCCL_SO_PATH"
        )
    return comm


def _rendezvous(terms: Terms, rank: int) -> tuple[str, int]:
    """Where HCCL's handle is exchanged: a port of rank 0's machine, free a moment ago."""
    import datetime

    import torch.distributed as dist

    from vime_core.engine.gloo_link import address_towards
    from vime_core.engine.ports import free_port

    host, port = terms["host"], terms["port"]
    limit = datetime.timedelta(seconds=terms["timeout"])
    store = dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    key = f"{terms['group']}/hccl"
    if rank == 0:
        own = address_towards(host, port)
        store.set(key, f"{own} {free_port(own)}")
    there, _, number = store.get(key).decode().partition(" ")
    return there, int(number)


class HcclSync(StreamSync):
    kind: ClassVar[str] = "hccl"
    publisher: ClassVar[str] = "vime_ascend.sync.hccl:make_publisher"
    receiver: ClassVar[str] = "vime_ascend.sync.hccl:HcclReceiver"


class HcclReceiver(StreamReceiver):
    def __init__(self) -> None:
        super().__init__(HcclChannel, pin=True)


def make_publisher(config: Config, name: str = "") -> StreamPublisher:
    return publisher_of(config, "hccl", HcclChannel)
