"""What vLLM is started with on NVIDIA devices."""

from __future__ import annotations

from typing import Any

from vime_cuda.environment import Situation


def engine_arguments(situation: Situation) -> dict[str, Any]:
    """Arguments under vLLM's names. What a run relies on (log-probs as sampled, sleep mode where engines sleep) is the
    core's to ask for."""
    found: dict[str, Any] = {}
    if situation.engine_devices > 1:
        # in a Ray placement group vLLM would place its workers by Ray, outside of the engine's actor
        found["distributed_executor_backend"] = "mp"
    return found
