"""Every wait on Ray goes through here: it has a deadline and a name, it hears that the run was asked to stop, and it
gives errors back as they were raised."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vime_core.api import DeadlineError, EngineError, VimeError
from vime_core.runtime.deadline import Deadline
from vime_core.runtime.ray_daemons import dead_daemon, ray_works

#: how often a wait looks whether the run was asked to stop, seconds
_POLL = 0.5
#: seconds that an answer may take from its node to this one
_FETCH = 60.0
#: seconds after a broken call in which another's death is still taken for the cause
_SIBLINGS = 3.0


def get(refs: Any, deadline: Deadline, what: str, names: Sequence[str] = ()) -> Any:
    """The value (or values) of Ray object references. The first failure is raised at once: a failed rank must be heard
    before its siblings' collective runs into a deadline.

    Args:
        what: what is awaited, for the message.
        names: who answers each of several.

    Raises:
        DeadlineError: nothing within ``deadline``.
        VimeError: as raised by the remote side, with its message alone; its traceback stays as the cause.
    """
    many = isinstance(refs, Sequence)
    awaited = list(refs) if many else [refs]
    labels = dict(zip(awaited, [f"{what}: {name}" for name in names] or [what] * len(awaited), strict=True))
    values = {}
    for ref in _done(awaited, deadline):
        try:
            values[ref] = _value(ref, labels[ref], VimeError)
        except VimeError as error:
            others = [one for one in awaited if one is not ref and one not in values]
            raise (_dead_sibling(error, others, labels) or error) from error.__cause__
    if late := [labels[ref].removeprefix(f"{what}: ") for ref in awaited if ref not in values]:
        who = f" ({', '.join(late)})" if names else ""
        raise DeadlineError(
            f"{what}: {len(late)} of {len(awaited)} did not answer within {deadline.seconds:.0f} s{who}"
        )
    return [values[ref] for ref in awaited] if many else values[refs]


def end_actor(actor: Any) -> None:
    """Kill it, where Ray can still be told to."""
    import ray

    if ray_works():
        ray.kill(actor, no_restart=True)


def gather(names: Sequence[str], refs: Sequence[Any], deadline: Deadline, what: str) -> list[Any]:
    """The answers of several engines, in order, once all have answered or failed.

    Raises:
        EngineError, SyncError: the first error in that order, as the engine raised it.
    """
    results = settle(names, refs, deadline, what)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def settle(names: Sequence[str], refs: Sequence[Any], deadline: Deadline, what: str) -> list[Any]:
    """The answer or the error of each engine, in order; an error says which engine it was."""
    done = set(_done(refs, deadline))
    late = f"{what}: no answer in {deadline.seconds:.0f} s"
    return [
        _value_or_error(ref, f"{name}: {what}") if ref in done else EngineError(f"{name}: {late}")
        for name, ref in zip(names, refs)
    ]


def _done(refs: Sequence[Any], deadline: Deadline) -> Iterator[Any]:
    """Those that have answered or failed, as they do so; the end comes when all have, or with the deadline."""
    import ray

    waiting = list(refs)
    while waiting:
        deadline.check()
        if (error := dead_daemon()) is not None:
            raise error
        last = deadline.expired()
        timeout = min(_POLL, deadline.left())
        done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=timeout, fetch_local=False)
        yield from done
        if last:
            return


def _dead_sibling(error: VimeError, others: Sequence[Any], labels: Mapping[Any, str]) -> VimeError | None:
    """Where one of a group dies, the others' collective breaks, and they may be heard first."""
    import ray

    if not others or type(error) is not VimeError or not isinstance(error.__cause__, ray.exceptions.RayTaskError):
        return None
    done, _ = ray.wait(list(others), num_returns=len(others), timeout=_SIBLINGS, fetch_local=False)
    for ref in done:
        try:
            ray.get(ref, timeout=_FETCH)
        except ray.exceptions.RayActorError as death:
            return as_raised(death, labels[ref], VimeError)
        except ray.exceptions.RayError:  # broken as the first one was
            continue
    return None


def _value_or_error(ref: Any, what: str) -> Any:
    try:
        return _value(ref, what, EngineError)
    except VimeError as error:
        return error


def _value(ref: Any, what: str, kind: type[VimeError]) -> Any:
    """The answer of a call that is done."""
    import ray

    try:
        return ray.get(ref, timeout=_FETCH)
    except ray.exceptions.GetTimeoutError as error:
        raise kind(f"{what}: its answer could not be fetched within {_FETCH:.0f} s") from error
    except ray.exceptions.RayError as error:
        raise as_raised(error, what, kind) from error


def _without_advice(text: str) -> str:
    """Ray's account of a death in one line, without the paragraph on what else it might have been."""
    return " ".join(text.split()).split(" Some common causes include", 1)[0]


def as_raised(error: Exception, what: str, kind: type[VimeError]) -> VimeError:
    """A remote VimeError as it was raised there; a defect, or the end of the process, as ``kind`` with ``what`` before
    it."""
    import ray

    if not isinstance(error, ray.exceptions.RayTaskError):
        if (dead := dead_daemon()) is not None:
            return dead
        return kind(f"{what}: the worker process died: {_without_advice(str(error))}")
    cause = error.cause
    if isinstance(cause, VimeError):
        return copy.copy(cause)  # without the traceback of the other process
    return kind(f"{what}: {type(cause).__name__}: {cause}\n{error}")
