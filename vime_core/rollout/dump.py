"""Samples as they are kept in the run folder: JSON values, trained or not, with what became of them. Of the streams
those with one number a token are kept; routed experts and tables of likeliest tokens are many times the rest, and
nobody reads them."""

from __future__ import annotations

from typing import Any

from vime_core.api import ROUTING, TEACHER_LOGP, Sample
from vime_core.data import nan_to_null, sample_to_json
from vime_core.rollout.driver import Collected

#: keys that every record has, whether the sample has such a stream or not
_ALWAYS: dict[str, Any] = {ROUTING.name: None, "top": None, TEACHER_LOGP.name: []}


def dump(collected: Collected) -> list[dict[str, Any]]:
    """One record a sample: those trained on, then those of dropped groups."""
    fates = [(group, "trained", "") for group in collected.groups]
    fates += [(dropped.group, dropped.outcome.value, dropped.reason) for dropped in collected.dropped]
    return [
        {"step": collected.step, "outcome": outcome, "reason": reason} | _record(sample)
        for group, outcome, reason in fates
        for sample in group.samples
    ]


def _record(sample: Sample) -> dict[str, Any]:
    record = sample_to_json(sample) | _ALWAYS
    del record["streams"]
    scalars = {s.name: nan_to_null(rows.tolist()) for s, rows in sample.streams.items() if not s.dims}
    return record | scalars
