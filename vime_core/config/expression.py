"""One comparison of a metric with a number: ``eval/addition >= 0.5``. Used by ``stop_when`` and ``target``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vime_core.api import ConfigError
from vime_core.config.nearest import did_you_mean

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_PATTERN = re.compile(r"\s*([A-Za-z_][\w./\-@]*)\s*(>=|<=|==|!=|>|<)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*")


@dataclass(frozen=True)
class Expression:
    """``metric operator number``."""

    metric: str
    operator: str
    number: float

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether it is true of these metrics, and of an evaluation's strict value, to which an answer without a score
        adds nothing. Raises ConfigError when the metric is not among them."""
        if self.metric not in metrics:
            known = ", ".join(sorted(metrics)) or "none"
            raise ConfigError(
                f"no metric {self.metric!r} to compare{did_you_mean(self.metric, metrics)} (there: {known})"
            )
        value = metrics.get(f"{self.metric}-strict", metrics[self.metric])
        return _OPERATORS[self.operator](value, self.number)

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.number:g}"


def parse(text: str) -> Expression:
    """Read a comparison. Raises ConfigError with the text and what is expected."""
    match = _PATTERN.fullmatch(text)
    if not match:
        raise ConfigError(
            f"{text!r} is not a comparison such as 'eval/addition >= 0.5' (metric, one of >= <= > < == !=, number)"
        )
    return Expression(match[1], match[2], float(match[3]))


def evaluate(text: str, metrics: Mapping[str, float]) -> bool:
    """Read a comparison and tell whether it is true of the metrics."""
    return parse(text).holds(metrics)
