"""Where an exception came from, in one line: type, message, and file:line in the code of the one to be blamed."""

from __future__ import annotations

import traceback


def describe(error: BaseException, file: str | None = None) -> str:
    """``ValueError at rewards.py:12: bad label``. The line is the last one in ``file``, else the last one of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or list(frames)
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{where}{': ' if text else ''}{text[:300]}"
