"""Calls to several engines at once: every wait has a deadline and says which engine it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vime_core.api import EngineError, VimeError

#: how often a wait looks whether it was given up, seconds
_POLL = 0.5

Check = Callable[[], None]


def never() -> None:
    """A wait that nobody gives up."""


def gather(names: Sequence[str], refs: Sequence[Any], deadline: float, what: str, check: Check = never) -> list[Any]:
    """The answers in order. ``check`` is called now and then and may raise to give the wait up.

    Raises:
        EngineError, SyncError: the first error, as the engine raised it.
    """
    results = settle(names, refs, deadline, what, check)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def settle(names: Sequence[str], refs: Sequence[Any], deadline: float, what: str, check: Check = never) -> list[Any]:
    """The answer or the error of each call, in order. All have ``deadline`` seconds together."""
    end = time.monotonic() + deadline
    for ref in refs:
        _await(ref, end, check)
    return [_answer(name, ref, deadline, what) for name, ref in zip(names, refs)]


def _await(ref: Any, end: float, check: Check) -> None:
    """Until the call has answered or failed, or its time is over."""
    import ray

    while True:
        check()
        left = end - time.monotonic()
        done, _ = ray.wait([ref], timeout=max(min(_POLL, left), 0.0))
        if done or left <= 0:
            return


def _answer(name: str, ref: Any, deadline: float, what: str) -> Any:
    import ray

    try:
        return ray.get(ref, timeout=0.01)
    except ray.exceptions.GetTimeoutError:
        return EngineError(f"{name}: {what}: no answer in {deadline:.0f} s")
    except ray.exceptions.RayTaskError as error:
        return _as_raised(name, error, what)
    except ray.exceptions.RayError as error:
        why = str(error).partition("\n")[0]
        return EngineError(f"{name}: {what}: its process is gone: {why}")


def _as_raised(name: str, error: Any, what: str) -> Exception:
    """The engine's own error without Ray's wrapping; a defect keeps its traceback in the message."""
    cause = error.cause
    if isinstance(cause, VimeError):
        return type(cause)(*cause.args)
    return EngineError(f"{name}: {what}: {type(cause).__name__}: {cause}\n{error}")
