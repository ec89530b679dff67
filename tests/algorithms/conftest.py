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


@pytest.fixture(scope="session")
def golden_loss() -> dict[str, Any]:
    """The same for what surrounds an algorithm: KL terms, corrections, distillation, metrics."""
    return json.loads((DATA / "golden_loss.json").read_text())


@pytest.fixture(scope="session")
def cases_loss() -> dict[str, Any]:
    """Bug reports about those."""
    return json.loads((DATA / "cases_loss.json").read_text())


@pytest.fixture(scope="session")
def golden_algorithms(golden: dict[str, Any]) -> dict[str, Any]:
    """The same for credit, returns, values and surrogates; its inputs are those of ``golden`` and further columns."""
    more = json.loads((DATA / "golden_algorithms.json").read_text())
    return {**more, "inputs": {**golden["inputs"]["A"], **more["inputs"]}}


@pytest.fixture
def case(request: pytest.FixtureRequest, cases: dict[str, Any]) -> dict[str, Any]:
    """The bug report whose number parametrizes the test, so that the number is in the test's name."""
    return {**cases, **json.loads((DATA / "cases_credit.json").read_text())}[request.param]
