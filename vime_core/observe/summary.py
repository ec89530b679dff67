"""The end of a run in ten lines: did it reach its target, how fast was it, can its numbers be trusted, where are
they."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.observe.columns import MISSING, duration, number, rate

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
        ledger: last count of each outcome of groups.
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


@dataclass(frozen=True)
class Target:
    """What the recipe asks for, e.g. ``eval/addition >= 0.9``. ``reached`` is None when nobody judged it."""

    metric: str
    text: str = ""
    reached: bool | None = None


@dataclass(frozen=True)
class Summary:
    """All that :func:`render` shows. None and empty mean "not measured" and show as ``-``.

    Attributes:
        outcome: how it ended, in words ("finished", "stopped by SIGINT", the error's line).
        tally: what a recorder gathered.
        wall: seconds of the whole run; it and ``phases``, seconds by phase, come from the phase clock.
        warnings: how many there were, and where they are; "" for none.
    """

    name: str
    outcome: str
    folder: Path
    tally: Tally
    target: Target | None = None
    wall: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    warnings: str = ""


def render(summary: Summary) -> str:
    """The text, ending in a newline."""
    lines = [f"vime: {summary.name}: {summary.outcome}"]
    rows = [
        ("target", _target(summary)),
        ("steps", _steps(summary)),
        ("time", _phases(summary.phases)),
        ("log-prob gap", f"{_number(summary.tally.worst_gap)} at most, trainer against sampler"),
        ("weight sync", _syncs(summary.tally)),
        ("groups", ", ".join(f"{outcome} {count:,.0f}" for outcome, count in summary.tally.ledger.items()) or MISSING),
    ]
    if summary.tally.non_finite:
        rows.append(
            ("attention", f"{summary.tally.non_finite} metric values were not finite; see non_finite in metrics.jsonl")
        )
    if summary.warnings:
        rows.append(("warnings", summary.warnings))
    rows.append(("run folder", str(summary.folder)))
    return "\n".join([*lines, *(f"  {label:<13}{text}" for label, text in rows), ""])


def _target(summary: Summary) -> str:
    target = summary.target
    if target is None:
        return MISSING
    first, last = summary.tally.first, summary.tally.last
    change = f"{target.metric} {_number(first.get(target.metric))} -> {_number(last.get(target.metric))}"
    verdict = {True: "reached", False: "MISSED", None: "not judged"}[target.reached]
    return f"{change} ({target.text}: {verdict})" if target.text else change


def _steps(summary: Summary) -> str:
    tally = summary.tally
    samples, tokens = (_rate(amount, tally.seconds) for amount in (tally.samples, tally.tokens))
    return f"{tally.steps} in {duration(summary.wall)}, {samples} samples/s, {tokens} tokens/s while stepping"


def _phases(phases: Mapping[str, float]) -> str:
    """Phases by size, with their shares of the sum."""
    total = sum(phases.values())
    if total <= 0:
        return MISSING
    ordered = sorted(phases.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {duration(seconds)} ({100 * seconds / total:.0f}%)" for name, seconds in ordered)


def _syncs(tally: Tally) -> str:
    if not tally.syncs:
        return MISSING
    volume = f"{tally.syncs} committed, {tally.sync_bytes / 1e9:.3f} GB in {duration(tally.sync_seconds)}"
    return f"{volume}, worst canary {_number(tally.worst_canary)}"


def _number(value: float | None) -> str:
    return MISSING if value is None else number(value)


def _rate(amount: float, seconds: float) -> str:
    """A speed is never invented where nothing was measured."""
    return rate(amount / seconds) if amount and seconds else MISSING


def _worse(before: float | None, value: float | None) -> float | None:
    """The larger; NaN beats every number, because a gap that cannot be measured is the worst one."""
    if value is None:
        return before
    if before is None or math.isnan(value):
        return value
    return max(before, value)
