"""What the summary of a run needs, gathered while it runs, so that nothing has to be read back from files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.api import Receipt

_GAP = "train/train_rollout_logprob_abs_diff"
_LEDGER = "rollout/groups/"


class Tally:
    """Running figures of one stage.

    Attributes:
        steps: rollout steps done.
        seconds: sum of their ``perf/step_time``.
        samples, tokens: trained in them, as far as their speed was measured.
        worst_gap: largest mean log-prob gap of a step; NaN as soon as one was not finite; None before there is one.
        first, last: first and last result of each evaluation, by metric name.
        ledger: last count of each fate of groups.
        syncs, sync_bytes, sync_seconds, worst_canary: over all committed syncs.
        non_finite: metric values that were not finite.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0
        self.samples = 0.0
        self.tokens = 0.0
        self.worst_gap: float | None = None
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.ledger: dict[str, float] = {}
        self.syncs = 0
        self.sync_bytes = 0
        self.sync_seconds = 0.0
        self.worst_canary: float | None = None
        self.non_finite = 0

    def step(self, metrics: Mapping[str, Any]) -> None:
        self.steps += 1
        seconds = metrics.get("perf/step_time") or 0.0
        self.seconds += seconds
        self.samples += (metrics.get("perf/samples_per_sec") or 0.0) * seconds
        self.tokens += (metrics.get("perf/tokens_per_sec") or 0.0) * seconds
        self.worst_gap = _worse(self.worst_gap, metrics.get(_GAP))
        self._remember(metrics)
        self.ledger.update({k.removeprefix(_LEDGER): v for k, v in metrics.items() if k.startswith(_LEDGER)})

    def evaluation(self, metrics: Mapping[str, Any]) -> None:
        self._remember(metrics)

    def sync(self, receipt: Receipt) -> None:
        self.syncs += 1
        self.sync_bytes += receipt.nbytes
        self.sync_seconds += receipt.seconds
        self.worst_canary = _worse(self.worst_canary, receipt.canary_gap)

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if value is not None:
                self.first.setdefault(name, value)
                self.last[name] = value


def _worse(before: float | None, value: float | None) -> float | None:
    """The larger; NaN beats every number, because a gap that cannot be measured is the worst one."""
    if value is None:
        return before
    if before is None or math.isnan(value):
        return value
    return max(before, value)
