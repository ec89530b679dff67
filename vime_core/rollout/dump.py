"""Samples as they are kept in the run folder: JSON values, trained or not, with what became of them. Routed experts and
tables of likeliest tokens are left out: they are many times the rest, and nobody reads them."""

from __future__ import annotations

from typing import Any

from vime_core.data.codec import sample_to_json
from vime_core.rollout.driver import Collected


def dump(collected: Collected) -> list[dict[str, Any]]:
    """One record a sample: those trained on, then those of dropped groups."""
    fates = [(group, "trained", "") for group in collected.groups]
    fates += [(dropped.group, dropped.outcome.value, dropped.reason) for dropped in collected.dropped]
    return [
        {"step": collected.step, "outcome": outcome, "reason": reason}
        | sample_to_json(sample)
        | {"routing": None, "top": None}
        for group, outcome, reason in fates
        for sample in group.samples
    ]
