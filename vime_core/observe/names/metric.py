"""One metric: its name, its unit and, above all, its definition: peers compute different things under one name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Axis = Literal["rollout/step", "train/step", "eval/step"]

#: what is averaged, or how the value comes about when nothing is
Mean = Literal[
    "token mean", "sample mean", "group mean", "weighted sum", "count", "maximum", "minimum", "median", "value"
]


@dataclass(frozen=True)
class Metric:
    """One logged scalar.

    Attributes:
        name: as logged. ``<part>`` stands for one part of the name, chosen by data, recipe or plugin; it never spans a
            slash.
        unit: "1" for pure numbers.
        meaning: what a user learns from it.
        definition: formula or rule, over which samples or tokens.
        mean: how the values of tokens or samples become one number.
        axis: name of the step counter it is plotted against.
    """

    name: str
    unit: str
    meaning: str
    definition: str
    mean: Mean
    axis: Axis

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.name.split("/"))

    @property
    def is_pattern(self) -> bool:
        return "<" in self.name
