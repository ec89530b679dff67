"""The order of the tests: what takes longest first, so that two processes end together."""

from __future__ import annotations

from pathlib import Path

import pytest

#: rooms whose files start the stack or ranks, the longest first
_LONG = ("pipeline", "training", "inference", "cli", "rollout")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)  # stable: the order inside a file stays


def _rank(item: pytest.Item) -> int:
    room = Path(item.path).parent.name
    return _LONG.index(room) if room in _LONG else len(_LONG)
