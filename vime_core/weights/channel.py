"""What a transport of bytes must do, and how long it may take."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from vime_core.api import DeadlineError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

#: what both ends must know to meet: ``kind`` of the transport, ``host``, ``port`` of the meeting point, ``group`` name,
#: ``world``, ``bucket`` bytes, ``timeout`` seconds
Rendezvous = Mapping[str, Any]


class Channel(abc.ABC):
    """One sender (rank 0) and everybody else, for the length of a run.

    Attributes:
        alive: it can carry another run of bytes; false for ever after an error.
        reuses: a bucket may be written over as soon as it was sent.
    """

    alive: bool = True
    reuses: ClassVar[bool] = True

    @abc.abstractmethod
    def empty(self, size: int) -> torch.Tensor:
        """[size] uint8 where the transport can put bytes."""

    @abc.abstractmethod
    def broadcast(self, flat: torch.Tensor) -> None:
        """[n] uint8 from rank 0 into everybody's ``flat``; the bytes are there when it returns.

        Raises:
            SyncError, DeadlineError: they may not be there; the channel is not alive any more.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Idempotent."""

    # what a transport that hands memory over, and copies nothing, does in its own way ---------------------------
    def begin(self, keep: bool) -> None:
        """The sender begins a version. ``keep``: what it sent as the last one is in use, and is not written over."""
        return

    def bucket(self, size: int) -> torch.Tensor:
        """[size] uint8 for the sender to pack a bucket in."""
        return self.empty(size)

    def give(self, flat: torch.Tensor) -> None:
        """Rank 0: a bucket's bytes to everybody."""
        self.broadcast(flat)

    def take(self, size: int) -> torch.Tensor:
        """Everybody else: the bytes of a :meth:`give`, [size] uint8."""
        flat = self.empty(size)
        self.broadcast(flat)
        return flat


#: makes the channel of one end: (terms, rank). Blocks until all ends are there, or until the deadline
Connect = Callable[[Rendezvous, int], Channel]


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
