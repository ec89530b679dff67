"""The end of a run in ten lines: did it reach its target, how fast was it, can its numbers be trusted, where are
they."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vime_core.observe.columns import MISSING, duration, number, rate
from vime_core.observe.tally import Tally


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
        before, after: first and last value of the target's metric.
        wall: seconds of the whole run.
        phases: seconds by phase.
        worst_gap: nat. sync_bytes: over all syncs.
        ledger: groups by fate.
    """

    name: str
    outcome: str
    folder: Path
    target: Target | None = None
    before: float | None = None
    after: float | None = None
    steps: int = 0
    wall: float | None = None
    samples_per_sec: float | None = None
    tokens_per_sec: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    worst_gap: float | None = None
    syncs: int = 0
    sync_bytes: int = 0
    sync_seconds: float = 0.0
    worst_canary: float | None = None
    ledger: Mapping[str, float] = field(default_factory=dict)
    non_finite: int = 0


def summarize(
    tally: Tally,
    *,
    name: str,
    outcome: str,
    folder: Path,
    target: Target | None = None,
    wall: float | None = None,
    phases: Mapping[str, float] | None = None,
) -> Summary:
    """The summary of what a recorder gathered; ``wall`` and ``phases`` come from the phase clock."""
    return Summary(
        name=name,
        outcome=outcome,
        folder=folder,
        target=target,
        before=tally.first.get(target.metric) if target else None,
        after=tally.last.get(target.metric) if target else None,
        steps=tally.steps,
        wall=wall,
        samples_per_sec=_per_second(tally.samples, tally.seconds),
        tokens_per_sec=_per_second(tally.tokens, tally.seconds),
        phases=phases or {},
        worst_gap=tally.worst_gap,
        syncs=tally.syncs,
        sync_bytes=tally.sync_bytes,
        sync_seconds=tally.sync_seconds,
        worst_canary=tally.worst_canary,
        ledger=tally.ledger,
        non_finite=tally.non_finite,
    )


def render(summary: Summary) -> str:
    """The text, ending in a newline."""
    lines = [f"vime: {summary.name}: {summary.outcome}"]
    rows = [
        ("target", _target(summary)),
        ("steps", _steps(summary)),
        ("time", _phases(summary.phases)),
        ("log-prob gap", f"{_number(summary.worst_gap)} at most, trainer against sampler"),
        ("weight sync", _syncs(summary)),
        ("groups", ", ".join(f"{fate} {count:,.0f}" for fate, count in summary.ledger.items()) or MISSING),
    ]
    if summary.non_finite:
        rows.append(
            ("attention", f"{summary.non_finite} metric values were not finite; see non_finite in metrics.jsonl")
        )
    rows.append(("run folder", str(summary.folder)))
    return "\n".join([*lines, *(f"  {label:<13}{text}" for label, text in rows), ""])


def _target(summary: Summary) -> str:
    target = summary.target
    if target is None:
        return MISSING
    change = f"{target.metric} {_number(summary.before)} -> {_number(summary.after)}"
    verdict = {True: "reached", False: "MISSED", None: "not judged"}[target.reached]
    return f"{change} ({target.text}: {verdict})" if target.text else change


def _steps(summary: Summary) -> str:
    samples, tokens = _rate(summary.samples_per_sec), _rate(summary.tokens_per_sec)
    return f"{summary.steps} in {duration(summary.wall)}, {samples} samples/s, {tokens} tokens/s while stepping"


def _phases(phases: Mapping[str, float]) -> str:
    """Phases by size, with their shares of the sum."""
    total = sum(phases.values())
    if total <= 0:
        return MISSING
    ordered = sorted(phases.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {duration(seconds)} ({100 * seconds / total:.0f}%)" for name, seconds in ordered)


def _syncs(summary: Summary) -> str:
    if not summary.syncs:
        return MISSING
    volume = f"{summary.syncs} committed, {summary.sync_bytes / 1e9:.3f} GB in {duration(summary.sync_seconds)}"
    return f"{volume}, worst canary {_number(summary.worst_canary)}"


def _number(value: float | None) -> str:
    return MISSING if value is None else number(value)


def _rate(value: float | None) -> str:
    return MISSING if value is None else rate(value)


def _per_second(amount: float, seconds: float) -> float | None:
    """None where nothing was measured: a speed is never invented."""
    return amount / seconds if amount and seconds else None
