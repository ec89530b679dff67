"""Every wait on Ray goes through here: it has a deadline, a name, and gives errors back as they were raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vime_core.api import DeadlineError, VimeError

#: how often a wait looks whether the user asked to stop, seconds
POLL = 0.5


def get(refs: Any, deadline: float, what: str, check: Callable[[], None] | None = None) -> Any:
    """The value (or values) of Ray object references.

    Args:
        deadline: seconds from now.
        what: what is awaited, for the message.
        check: called every :data:`POLL` seconds; may raise to give the wait up (an interrupt).

    Raises:
        DeadlineError: nothing within ``deadline``.
        VimeError: as raised by the remote side, with its message alone; its traceback stays as the cause.
    """
    import time

    import ray

    many = isinstance(refs, Sequence)
    pending = list(refs) if many else [refs]
    end = time.monotonic() + deadline
    while True:
        if check is not None:
            check()
        ready, waiting = ray.wait(pending, num_returns=len(pending), timeout=POLL, fetch_local=False)
        for ref in ready:
            _raise_if_failed(ref, what)
        if not waiting:
            break
        if time.monotonic() > end:
            raise DeadlineError(f"{what}: {len(waiting)} of {len(pending)} did not answer within {deadline:.0f} s")
    values = [ray.get(ref) for ref in pending]
    return values if many else values[0]


def _raise_if_failed(ref: Any, what: str) -> None:
    """A failed rank must be heard at once, not after its siblings' collective ran into a deadline."""
    import ray

    try:
        ray.get(ref, timeout=60)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, VimeError):
            raise _copy(cause) from error
        raise VimeError(f"{what}: {type(cause).__name__}: {cause}\n{error}") from error
    except ray.exceptions.RayActorError as error:
        raise VimeError(f"{what}: the worker process died: {error}") from error


def _copy(error: VimeError) -> VimeError:
    fresh = type(error).__new__(type(error))
    fresh.__dict__.update(error.__dict__)
    fresh.args = error.args
    return fresh
