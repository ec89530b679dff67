"""The two parts of a trainer's device memory that go to the host by themselves."""

from __future__ import annotations

from typing import Literal

#: "weights" is what a weight sync needs; "rest" is what only training does: gradients, main parameters, moments
Part = Literal["weights", "rest"]
PARTS: tuple[Part, ...] = ("weights", "rest")
