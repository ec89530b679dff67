"""Log files of engines and router: one a process, and what went wrong in it in every error message.

What a process says last is seldom why it failed: an engine's front end ends with "see root cause above", a router with
its workers' addresses. The first error in the log is the cause of those that follow.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

#: bytes of a log that are looked at, from its end, and lines of it that are shown where it has no error
_WINDOW, _TAIL = 1 << 22, 15
#: lines that are shown of one error
_SHOWN = 6
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: what vLLM's processes put before each line: who speaks, the level, when, and where in the code
_PREFIX = re.compile(r"(?:\([^()]*pid=\d+\) )?(?:(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?")
_SEVERE = ("ERROR", "CRITICAL")
_TRACEBACK = "Traceback (most recent call last):"
#: the line that ends a traceback: the exception's type, then its text
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")
#: an error without a traceback: of an argument parser, a level, Rust, the C library, the interpreter
_ERROR = re.compile(
    r"\berror: |\b(?:ERROR|FATAL)\b|panicked at|^terminate called|^Fatal Python error|Segmentation fault"
)


def log_error(path: Path) -> str:
    """The first error in a log as the end of a message, with the log's path; where there is none the log's last lines,
    and nothing where there is no log."""
    if not path.is_file():
        return ""
    lines = _last_lines(path)
    if not lines:
        return f"\n({path} is empty)"
    found = _first_error(lines)
    head = f"first error in {path}:" if found else f"no error in {path}, its last lines:"
    return "\n".join([f"\n{head}", *(found or lines[-_TAIL:])])


def redirect_output(path: Path) -> None:
    """Send this process's stdout and stderr, and what its children inherit, to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _WINDOW))
        text = stream.read().decode(errors="replace")
    return [line for line in _COLOUR.sub("", text).splitlines() if line.strip()]


def _first_error(lines: list[str]) -> list[str]:
    """Its lines: of a traceback the last frame and what was raised. What was logged as a warning is no error."""
    said = [_Line.read(line) for line in lines]
    for at, line in enumerate(said):
        if line.text == _TRACEBACK and line.level in ("", *_SEVERE):
            return _raised(_record(said, at), bool(line.prefix))
        if line.is_error and (rest := _record(said, at))[:1] != [_TRACEBACK]:
            return [lines[at], *itertools.takewhile(_is_indented, rest[: _SHOWN - 1])]
    return []


def _record(said: list[_Line], at: int) -> list[str]:
    """What the speaker of the line ``at`` goes on to say."""
    return [line.text for line in said[at + 1 :] if line.prefix == said[at].prefix]


def _raised(rest: list[str], one_record: bool) -> list[str]:
    """What ends the traceback whose frames begin ``rest``: its last frame, then the exception with its further lines,
    which are all that follow where the traceback is one record of the log, else those that are indented."""
    ends = next((at for at, text in enumerate(rest) if _EXCEPTION.match(text)), len(rest))
    frames = [text for text in rest[:ends] if text.startswith("  File ")]
    more = itertools.takewhile(lambda text: one_record or _is_indented(text), rest[ends + 1 : ends + _SHOWN])
    return [*frames[-1:], *rest[ends : ends + 1], *more]


def _is_indented(text: str) -> bool:
    return text.startswith(" ")


@dataclass(frozen=True)
class _Line:
    """``prefix`` tells who speaks; the lines of one record have the same. ``level`` is empty where none is said."""

    prefix: str
    level: str
    text: str

    @classmethod
    def read(cls, line: str) -> _Line:
        match = _PREFIX.match(line)
        assert match is not None  # every part of it is optional
        return cls(match[0], match["level"] or "", line[match.end() :].rstrip())

    @property
    def is_error(self) -> bool:
        return self.level in _SEVERE or (not self.level and bool(_ERROR.search(self.text)))
