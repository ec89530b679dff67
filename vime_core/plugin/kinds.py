"""The kinds of things that plugins provide, and what an object of each kind must look like.

A wrong object is refused when it is loaded, with a sentence that says what was expected, not at its first use deep in
a run.
"""

from __future__ import annotations

import inspect
from typing import Any

from vime_core.plugin.registry import Shape
from vime_core.plugin.targets import load_target


def subclass_of(target: str) -> Shape:
    """A shape: a class derived from the ABC that ``target`` names, with every abstract method implemented."""

    def check(value: Any) -> str | None:
        base = load_target(target)
        if not (isinstance(value, type) and issubclass(value, base)):
            return f"it is {_describe(value)}, not a subclass of {target.replace(':', '.')}"
        missing = sorted(getattr(value, "__abstractmethods__", ()))
        return f"{value.__name__} does not implement {', '.join(missing)}" if missing else None

    return check


def is_callable(value: Any) -> str | None:
    return None if callable(value) else f"it is {_describe(value)}, not a function"


def is_reward(value: Any) -> str | None:
    """A function of one sample, or an object that declares ``score_group``."""
    if callable(getattr(value, "score_group", None)):
        return None
    if not callable(value):
        return f"it is {_describe(value)}; a reward is a function of a sample, or has score_group"
    if inspect.isfunction(value) and not _takes_one(value):
        return f"{value.__name__}{inspect.signature(value)} cannot be called with one sample"
    return None


def is_correction(value: Any) -> str | None:
    """A function of a batch and its advantages; whatever else it takes, it takes by keyword, with defaults."""
    if not inspect.isfunction(value):
        return is_callable(value)
    try:
        inspect.signature(value).bind(object(), object())
    except TypeError:
        return f"{value.__name__}{inspect.signature(value)} cannot be called with a batch and its advantages"
    return None


def _takes_one(function: Any) -> bool:
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        return False
    return True


def _describe(value: Any) -> str:
    if isinstance(value, type):
        return f"class {value.__name__}"
    if inspect.ismodule(value):
        return f"module {value.__name__}"
    if inspect.isroutine(value):
        return f"function {value.__name__}"
    return f"an object of {type(value).__name__}"
