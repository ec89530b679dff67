"""Environments: what a rollout generator acts in."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Observation:
    """What the environment says after an action. ``done`` ends the episode."""

    text: str
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class Environment(abc.ABC):
    """One episode. Created for a sample, closed in every case."""

    @abc.abstractmethod
    async def reset(self, metadata: Mapping[str, Any]) -> Observation: ...

    @abc.abstractmethod
    async def step(self, action: str) -> Observation: ...

    async def close(self) -> None:
        return None
