"""What a carrier of bytes must do, and how long it may take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vime_core.api.errors import DeadlineError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

#: what both ends must know to meet: ``host``, ``port`` of the meeting point, ``group`` name, ``world``, ``bucket``
#: bytes, ``timeout`` seconds
LossConfig = Mapping[str, Any]


class Channel(Protocol):
    """One sender (rank 0) and everybody else, for the length of a run.

    Attributes:
        alive: it can carry another run of bytes; false for ever after an error.
    """

    alive: bool

    def empty(self, size: int) -> torch.Tensor:
        """[size] uint8 where the carrier can put bytes."""

    def broadcast(self, flat: torch.Tensor) -> None:
        """[n] uint8 from rank 0 into everybody's ``flat``; the bytes are there when it returns.

        Raises:
            SyncError, DeadlineError: they may not be there; the channel is not alive any more.
        """

    def close(self) -> None:
        """Idempotent."""


#: makes the channel of one end: (terms, rank). Blocks until all ends are there, or until the deadline
Connect = Callable[[LossConfig, int], Channel]


def within(seconds: float, what: str, work: Callable[[], T]) -> T:
    """The result of ``work``, in a thread of its own; native collectives cannot be interrupted, only left behind.

    Raises:
        DeadlineError: it did not return in time. Whatever ``work`` raises.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name=f"vime-{what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise DeadlineError(f"{what}: nothing after {seconds:g} s (--vllm-weight-transfer-timeout-sec)")
    return done[0]
