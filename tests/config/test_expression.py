"""Comparisons of a metric with a number."""

from __future__ import annotations

import pytest

from vime_core.api.errors import ConfigError
from vime_core.config.expression import Expression, evaluate, parse


def test_parse() -> None:
    assert parse("eval/addition >= 0.5") == Expression("eval/addition", ">=", 0.5)
    assert parse("  train/kl<-1e-3 ") == Expression("train/kl", "<", -0.001)
    assert str(parse("a==.5")) == "a == 0.5"


@pytest.mark.parametrize(
    "text",
    ["", "a", "a >=", ">= 1", "a => 1", "a >= b", "a >= 1 and b >= 1", "a = 1", "a >= 1 2", "1 >= a", "a >= nan"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a comparison such as"):
        parse(text)


@pytest.mark.parametrize(
    ("operator", "below", "same", "above"),
    [
        (">=", False, True, True),
        (">", False, False, True),
        ("<=", True, True, False),
        ("<", True, False, False),
        ("==", False, True, False),
        ("!=", True, False, True),
    ],
)
def test_operators(operator: str, below: bool, same: bool, above: bool) -> None:
    answers = [evaluate(f"m {operator} 0.5", {"m": value}) for value in (0.25, 0.5, 0.75)]
    assert answers == [below, same, above]


def test_metric_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no metric 'eval/adition' to compare; did you mean eval/addition"):
        evaluate("eval/adition >= 1", {"eval/addition": 1.0})
