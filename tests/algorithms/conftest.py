"""Right numbers, kept beside the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """Expected values on written-out inputs, checked against several public implementations."""
    return json.loads((DATA / "golden.json").read_text())


@pytest.fixture(scope="session")
def cases() -> dict[str, Any]:
    """Small cases from public bug reports: the mistake, inputs, the right and the wrong value."""
    return json.loads((DATA / "cases.json").read_text())
