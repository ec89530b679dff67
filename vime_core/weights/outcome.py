"""What a worker says of a weight update: one shape for vLLM's workers and for a bench that stands in for them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What became of the last update. ``refused`` is empty when it was loaded; ``dirty``: the model is in pieces."""

    version: int = 0
    refused: str = ""
    dirty: bool = False
    digest: str = ""
    names: int = 0
    nbytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
