"""Tasks that a generator starts belong to its group: what still runs when the generator has returned is ended.

Nobody would wait for such a task, read its error or stop it, and it would go on asking the engines for tokens of a
group that is over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from contextvars import Context, ContextVar
from typing import Any

from vime_core.runtime import warn

#: seconds for cancelled tasks to end
_ENDING = 5.0

#: where tasks that are started now are noted; None: they are the core's
_NOTED: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("tasks of a group", default=None)


@contextlib.asynccontextmanager
async def owned_tasks(who: str) -> AsyncIterator[None]:
    """Note every task that is started inside, also by a task that was; at the end cancel those that still run, with a
    warning that names ``who``. A task that is to outlive its group is started with a context of its own:
    ``asyncio.create_task(..., context=contextvars.Context())``."""
    _install(asyncio.get_running_loop())
    tasks: set[asyncio.Task[Any]] = set()
    token = _NOTED.set(tasks)
    try:
        yield
    finally:
        _NOTED.reset(token)
        left = [task for task in tasks if not task.done()]
        if left:
            await _end(left, who)


@contextlib.contextmanager
def not_owned() -> Iterator[None]:
    """Inside, tasks are the core's, whoever's call it is."""
    token = _NOTED.set(None)
    try:
        yield
    finally:
        _NOTED.reset(token)


def _install(loop: asyncio.AbstractEventLoop) -> None:
    inner = loop.get_task_factory()
    if isinstance(inner, _Factory):
        return
    loop.set_task_factory(_Factory(inner))  # type: ignore[arg-type]  # the stub forgets the context


class _Factory:
    """Makes tasks as before, and notes them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner or (lambda loop, work, **more: asyncio.Task(work, loop=loop, **more))

    def __call__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._inner(loop, work, **({} if context is None else {"context": context}))
        noted = _NOTED.get() if context is None else context.get(_NOTED)
        if noted is not None:
            noted.add(task)
        return task


async def _end(tasks: Collection[asyncio.Task[Any]], who: str) -> None:
    for task in tasks:
        task.cancel()
    ended, alive = await asyncio.wait(tasks, timeout=_ENDING)
    for task in ended:
        if not task.cancelled():
            task.exception()  # looked at, so that the loop does not complain of it later
    names = ", ".join(sorted(_work_of(task) for task in tasks)[:3])
    stubborn = f", and {len(alive)} do not end" if alive else ""
    warn(
        f"{who} left tasks",
        f"{who} returned while {len(tasks)} tasks that it had started were running ({names}); they were "
        f"cancelled{stubborn}: await or cancel them before returning",
    )


def _work_of(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())
