"""A communicator of a device's collective library as a carrier: one between trainer rank 0 and all engine workers, made
once and kept for the run.

The communicators are vLLM's (and its hardware plugins'), because they stand beside torch.distributed and work in a vLLM
worker. Where the library cannot be loaded such a one disables itself without an error, and every broadcast then does
nothing: it is refused. Each broadcast is one flat run of bytes, whatever the tensors in it are. The library's calls
cannot be interrupted, so they run in a thread of the channel's, which is left behind at a deadline.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from vime_core.api import DeadlineError, SyncError, VimeError
from vime_core.weights.channel import Channel, Rendezvous

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class CommunicatorChannel(Channel):
    """One end. Rank 0 chooses a port for the library's rendezvous and tells the others at the meeting point.

    Args:
        module: the device's torch module, as ``torch.cpu`` is one.
        device_type: of the tensors.
    """

    #: the library, for messages
    library: ClassVar[str]
    #: what to do where it cannot be loaded
    remedy: ClassVar[str]

    def __init__(self, terms: Rendezvous, rank: int, module: Any, device_type: str) -> None:
        self._module, self._type = module, device_type
        self._index: int = module.current_device()
        self._deadline: float = terms["timeout"]
        what = f"{self.library}, rank {rank} of {terms['world']}"
        self._thread = CallThread(self.library)
        self._comm: Any = self._thread.call(self._deadline, what, lambda: self._joined(terms, rank))

    @abc.abstractmethod
    def join(self, host: str, port: int, rank: int, world: int) -> Any:
        """vLLM's communicator on the current device ``self._index``; blocks until all ranks are there."""

    @abc.abstractmethod
    def destroy(self, comm: Any) -> None:
        """Give the communicator's resources back."""

    def empty(self, size: int) -> torch.Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8, device=torch.device(self._type, self._index))

    def broadcast(self, flat: torch.Tensor) -> None:
        if not self.alive:
            raise SyncError(f"the {self.library} channel is closed")
        self._module.synchronize()  # what fills the bucket ran on another stream
        try:
            self._thread.call(self._deadline, f"{self.library} broadcast of weights", lambda: self._broadcast(flat))
        except BaseException as error:
            self.alive = False
            if isinstance(error, VimeError):
                raise
            raise SyncError(f"{self.library}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        comm, self._comm, self.alive = self._comm, None, False
        self._thread.close()
        if comm is not None:
            self.destroy(comm)

    def _joined(self, terms: Rendezvous, rank: int) -> Any:
        host, port = rendezvous(terms, rank, self.library)
        with self._module.device(self._index):
            return enabled(self.join(host, port, rank, terms["world"]), self.library, self.remedy)

    def _broadcast(self, flat: torch.Tensor) -> None:
        with self._module.device(self._index):
            self._comm.broadcast(flat, src=0)
            self._module.synchronize()


def enabled(comm: Any, library: str, remedy: str) -> Any:
    """The communicator.

    Raises:
        SyncError: it has disabled itself: every call would return at once, and nothing would move.
    """
    if getattr(comm, "disabled", True) or not getattr(comm, "available", False):
        raise SyncError(
            f"the {library} communicator is disabled: its library could not be loaded, or the group has one member; "
            f"{remedy}"
        )
    return comm


def rendezvous(terms: Rendezvous, rank: int, library: str) -> tuple[str, int]:
    """Where the library's handle is exchanged: a port of rank 0's machine, free a moment ago."""
    import datetime

    import torch.distributed as dist

    from vime_core.runtime import free_port
    from vime_core.weights.rendezvous import address_towards

    host, port = terms["host"], terms["port"]
    limit = datetime.timedelta(seconds=terms["timeout"])
    store = dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    key = f"{terms['group']}/{library}"
    if rank == 0:
        own = address_towards(host, port)
        store.set(key, f"{own} {free_port(own)}")
    there, _, number = store.get(key).decode().partition(" ")
    return there, int(number)


class CallThread:
    """A thread that native collectives run in: they cannot be interrupted, only left behind. One for the length of a
    channel; after a call that did not return it takes no other.

    Args:
        name: for a list of threads.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name=f"vime-{name}", daemon=True).start()

    def call(self, seconds: float, what: str, work: Callable[[], T]) -> T:
        """The result of ``work``.

        Raises:
            DeadlineError: it did not return in time. Whatever ``work`` raises.
        """
        answer: Future[T] = Future()
        self._calls.put(lambda: _settle(answer, work))
        if not wait([answer], seconds).done:
            raise DeadlineError(f"{what}: nothing after {seconds:g} s (--vllm-weight-transfer-timeout-sec)")
        return answer.result()

    def close(self) -> None:
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(answer: Future[T], work: Callable[[], T]) -> None:
    try:
        answer.set_result(work())
    except BaseException as error:
        answer.set_exception(error)
