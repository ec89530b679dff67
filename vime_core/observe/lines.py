"""A file of JSON lines that grows while the run lives. Each line is handed to the operating system whole, so that a
killed process loses none that it had written, and half a last line is told apart from a broken file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime_core.api import DataError
from vime_core.observe.strict_json import dumps


class Lines:
    """``path`` need not exist before the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> int:
        """Add a line. Returns how many of its numbers were not finite: they are null; ``non_finite`` is the count."""
        line, non_finite = dumps(row)
        if non_finite:
            line, _ = dumps({**row, "non_finite": non_finite})
        with open(self.path, "ab") as file:
            file.write(line.encode() + b"\n")
        return non_finite

    def read(self) -> list[dict[str, Any]]:
        """All lines. A last line without its end (the process was killed in it) is left out.

        Raises:
            DataError: another line is not JSON.
        """
        if not self.path.exists():
            return []
        *whole, _torn = self.path.read_bytes().split(b"\n")
        return [self._parse(number, line) for number, line in enumerate(whole, 1)]

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
            return row
        except ValueError as error:
            raise DataError(f"{self.path}:{number}: not a JSON line: {error}") from error
