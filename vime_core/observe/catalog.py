"""Every metric that vime logs, read from ``metrics.toml``. A name that is not there is not logged;
``docs/metrics.md`` is written from it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PLACEHOLDER = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class Metric:
    """One logged scalar: its name, its unit and, above all, its definition: peers compute different things under one
    name.

    Attributes:
        name: as logged. ``<part>`` stands for one part of the name, chosen by data, recipe or plugin; it never spans a
            slash.
        unit: "1" for pure numbers.
        mean: how the values of tokens or samples become one number.
        meaning: what a user learns from it.
        definition: formula or rule, over which samples or tokens.
    """

    name: str
    unit: str
    mean: str
    meaning: str
    definition: str

    @property
    def axis(self) -> str:
        """Name of the step counter it is plotted against."""
        return axis_of(self.name)

    @property
    def is_pattern(self) -> bool:
        return "<" in self.name


@cache
def metric_groups() -> Mapping[str, Sequence[Metric]]:
    """Heading of the documentation -> metrics, in the order of documentation."""
    text = Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8")
    groups = tomllib.loads(text).items()
    return {heading: [Metric(name, *values) for name, values in group.items()] for heading, group in groups}


def metrics() -> list[Metric]:
    """All of them."""
    return [metric for group in metric_groups().values() for metric in group]


def find(name: str) -> Metric | None:
    """The metric that ``name`` is an instance of; of several patterns, the one with the most literal characters."""
    exact = [m for m in metrics() if m.name == name and not m.is_pattern]
    fits = exact or [m for m in metrics() if m.is_pattern and _expression(m).fullmatch(name)]
    return max(fits, key=lambda m: len(_PLACEHOLDER.sub("", m.name)), default=None)


def known(name: str) -> bool:
    """Whether the catalogue has ``name``, literally or as an instance of a pattern."""
    return find(name) is not None


def unknown(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are not in the catalogue, sorted."""
    return sorted(name for name in set(names) if not known(name))


def axis_of(name: str) -> str:
    """The step counter that a metric is plotted against, from its prefix; other prefixes count rollout steps."""
    prefix = name.split("/", 1)[0]
    return f"{prefix}/step" if prefix in ("train", "eval") else "rollout/step"


def _expression(metric: Metric) -> re.Pattern[str]:
    literals = _PLACEHOLDER.split(metric.name)
    return re.compile("[^/]+".join(re.escape(part) for part in literals))
