"""The border between the core and code of plugins: what comes back over it, as messages name it.

Whatever a plugin's code raises or returns is described here, with the plugin, its distribution and version and the
function, and reported as a warning whose first traceback of each kind is kept in the run folder. What an answer has to
look like is the caller's to know, except of hooks, whose answers are checked here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from vime_core.api import PluginError, VimeError
from vime_core.plugin.messages import BLAMABLE
from vime_core.runtime import warn

T = TypeVar("T")

#: characters of a value or of an exception's text that are shown
_VALUE, _TEXT = 60, 300


def describe(error: BaseException, file: str | None = None) -> str:
    """Where an exception came from, in one line: ``ValueError at rewards.py:12: bad label``. The line is the last
    one in ``file``, else the last one of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or list(frames)
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{where}{': ' if text else ''}{text[:_TEXT]}"


def short(value: Any) -> str:
    """Type and beginning of a value."""
    try:
        text = repr(value)
    except Exception as error:  # of a repr that is the plugin's own
        text = f"(its repr raised {type(error).__name__})"
    return f"{type(value).__name__} {text[:_VALUE]}{'...' if len(text) > _VALUE else ''}"


def raised(who: str, error: BaseException, file: str | None = None) -> str:
    """``describe``, after the warning ``who: ...``; one kind is one type of exception of one ``who``."""
    line = describe(error, file)
    warn(f"{who} raised {type(error).__name__}", f"{who}: {line}", error)
    return line


def make(who: str, call: Callable[[], T]) -> T:
    """What a constructor of a plugin's makes.

    Raises:
        PluginError: it raised, and no error of ours.
    """
    try:
        return call()
    except VimeError:
        raise
    except BLAMABLE as error:
        raise PluginError(f"{who} could not be made: {raised(who, error)}") from error


def hook_answer_fault(hook: str, answer: Any) -> str:
    """What is wrong with a hook's answer, or ""."""
    right, expected = _EXPECTED.get(hook, (_is_nothing, "nothing"))
    return "" if right(answer) else f"returned {short(answer)}: it must return {expected}"


def _is_nothing(answer: Any) -> bool:
    return answer is None


def _is_name(answer: Any) -> bool:
    return answer is None or (isinstance(answer, str) and bool(answer))


def _are_variables(answer: Any) -> bool:
    if not isinstance(answer, Mapping):
        return answer is None
    return all(isinstance(text, str) for pair in answer.items() for text in pair)


#: hook -> what its answer is asked, and what it must be, in words; all other hooks return nothing
_EXPECTED = {
    "vime_choose_weight_sync": (_is_name, "the name of a weight sync, or None"),
    "vime_worker_environment": (_are_variables, "a mapping of names of variables to texts, or None"),
}
