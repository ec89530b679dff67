"""Rows out of files. A path may end in a slice of rows (``train.jsonl@[-100:]``); every row knows where it came from,
so that whatever is wrong with it later can be said with file and line. Blank lines are no rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vime_core.api import DataError
from vime_core.runtime import warn

_SLICE = re.compile(r"(?P<path>.+)@\[(?P<start>(?:-?\d+)?):(?P<stop>(?:-?\d+)?)\]", re.DOTALL)
#: messages of bad rows that are kept
_SHOWN = 5


class BadRows:
    """What becomes of rows that cannot be used: the first ends the run, or they are counted and left out.

    Args:
        policy: "error" raises the first error; "skip" keeps count and the first few messages.
    """

    def __init__(self, policy: Literal["error", "skip"]) -> None:
        self._policy = policy
        self.count = 0
        self.first: list[str] = []

    def report(self, error: DataError) -> None:
        """Raises:
        DataError: the error itself, under "error".
        """
        if self._policy == "error":
            raise DataError(f"{error} (or leave such rows out: --on-bad-row skip)") from error
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(str(error))

    def summary(self) -> str:
        more = self.count - len(self.first)
        return "; ".join(self.first) + (f"; and {more} more" if more else "")

    def log(self) -> None:
        """One warning line, if any row was left out."""
        if self.count:
            warn("bad rows", f"{self.count} bad rows left out: {self.summary()}")


@dataclass(frozen=True)
class Row:
    """One object of a data set. ``source`` is ``file:line`` (for parquet: the row's number, from 1)."""

    source: str
    values: Mapping[str, Any]


def split_slice(spec: str) -> tuple[str, slice]:
    """``path@[a:b]`` -> (path, slice of rows). Only a slice at the very end counts; the rest is the file's name."""
    match = _SLICE.fullmatch(spec)
    if match is None:
        return spec, slice(None)
    start, stop = (int(match[side]) if match[side] else None for side in ("start", "stop"))
    return match["path"], slice(start, stop)


def read_rows(spec: str, bad: BadRows) -> Iterator[Row]:
    """The rows of one file, in order.

    Args:
        spec: path of a .jsonl or .parquet file, with or without a slice.
        bad: what becomes of a row that is no JSON object.

    Raises:
        DataError: no such file, another extension, a file that cannot be read, or a bad row under "error".
    """
    name, rows = split_slice(spec)
    path = Path(name)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        hint = "; a slice of rows is written path@[a:b] with whole numbers" if "@[" in name else ""
        raise DataError(f"{spec}: data sets are read from {' and '.join(sorted(_READERS))} files{hint}")
    if not path.is_file():
        raise DataError(f"{spec}: {'this is no file' if path.exists() else 'no such file'} ({path.absolute()})")
    return reader(path, rows, bad)


def _jsonl(path: Path, rows: slice, bad: BadRows) -> Iterator[Row]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    for number, line in lines[rows]:
        try:
            yield Row(f"{path}:{number}", _object(line))
        except ValueError as error:
            bad.report(DataError(f"{path}:{number}: {error}"))


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("not usable JSON: nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"a row must be a JSON object, this one is {type(value).__name__}")
    return value


def _parquet(path: Path, rows: slice, bad: BadRows) -> Iterator[Row]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: parquet files need pyarrow; pip install 'vime-core[parquet]'") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as parquet: {str(error).splitlines()[0]}") from error
    start, stop, _ = rows.indices(table.num_rows)
    for offset, values in enumerate(table.slice(start, max(0, stop - start)).to_pylist(), start + 1):
        yield Row(f"{path}:{offset}", values)


_READERS: Mapping[str, Callable[[Path, slice, BadRows], Iterator[Row]]] = {".jsonl": _jsonl, ".parquet": _parquet}
