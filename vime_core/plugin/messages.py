"""How the plugin kernel words its errors: one line, always plugin - hook or target - cause - what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from vime_core.api import VimeError

#: what plugin code may raise and still be blamed for: ``sys.exit`` in a plugin must not look like a finished command
BLAMABLE = (Exception, SystemExit)


def one_line(error: BaseException) -> str:
    """``Type: text`` in one line; vime's own errors are sentences already and go without their type."""
    text = " ".join(str(error).split())
    if isinstance(error, VimeError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def remedy(error: BaseException) -> str:
    """``; install 'x'`` for a missing module, else nothing."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"; install '{error.name.partition('.')[0]}' in this environment"
    return ""


def nearest(name: str, names: Iterable[str]) -> str:
    """``; did you mean 'grpo'`` or nothing."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'" if close else ""


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
