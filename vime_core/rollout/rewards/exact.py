"""The response is the label, apart from white space around it."""

from __future__ import annotations

from vime_core.api import Sample, Unscored


def score(sample: Sample) -> float | Unscored:
    """1.0 if the stripped response equals the stripped label, else 0.0."""
    if sample.label is None:
        return Unscored("no label: reward exact compares with it; --label-key names its key")
    return float(sample.response.strip() == str(sample.label).strip())
