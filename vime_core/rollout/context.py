"""What a generator may know when it is made. A class that is registered as a rollout is called with this one object (or
with nothing, where its constructor takes nothing)."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config import Config
from vime_core.data import LengthLimits, Tokenizer


@dataclass(frozen=True)
class RolloutContext:
    """The run's configuration, its tokenizer, and how long prompts and responses may be."""

    config: Config
    tokenizer: Tokenizer
    limits: LengthLimits
