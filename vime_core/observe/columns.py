"""The few numbers of a step that people look at first, and how they are written. Shared by the plain and the live view.
What was not measured is ``-``, never 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MISSING = "-"


@dataclass(frozen=True)
class Column:
    """``short`` labels the plain line and ``label`` the live view; ``name`` is the metric."""

    short: str
    label: str
    name: str
    write: Callable[[float], str]

    def text(self, metrics: Mapping[str, Any]) -> str:
        """The value as text; ``-`` when the metric is absent or None."""
        value = metrics.get(self.name)
        return MISSING if value is None else self.write(float(value))


def number(value: float) -> str:
    """Three significant digits: ``0.531``, ``12.3``, ``3.1e-06``."""
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" if not abs(value) >= 1000 else f"{value:,.0f}"
    return f"{value:.1e}"


def percent(value: float) -> str:
    return f"{100 * value:.0f}%" if math.isfinite(value) else str(value)


def length(value: float) -> str:
    return f"{value:,.1f}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """``8.1s``, ``3m05s``, ``2h07m``."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


COLUMNS = (
    Column("reward", "reward", "rollout/raw_reward", number),
    Column("loss", "loss", "train/loss", number),
    Column("len", "response length", "rollout/response_len/mean", length),
    Column("trunc", "truncated", "rollout/truncated_ratio", percent),
    Column("gap", "log-prob gap", "train/train_rollout_logprob_abs_diff", number),
    Column("grad", "gradient norm", "train/grad_norm", number),
    Column("stale", "staleness", "rollout/staleness/mean", number),
    Column("tok/s", "tokens/s", "perf/tokens_per_sec", rate),
    Column("step", "step time", "perf/step_time", duration),
)


def evaluation_text(step: int, metrics: Mapping[str, Any]) -> str:
    """``eval after 12 steps: addition 0.934 (2 % unscored)``: the result of each evaluation set."""
    listed = ", ".join(_result(name, metrics) for name in metrics if _is_result(name))
    return f"eval after {step} steps: {listed or MISSING}"


def _result(name: str, metrics: Mapping[str, Any]) -> str:
    value, missing = metrics[name], metrics.get(f"{name}-unscored_ratio") or 0.0
    beside = f" ({100 * missing:.3g} % unscored)" if missing else ""
    return f"{name.removeprefix('eval/')} {MISSING if value is None else number(value)}{beside}"


def _is_result(name: str) -> bool:
    beside = ("-truncated_ratio", "-unscored_ratio", "-strict")
    return name.startswith("eval/") and name.count("/") == 1 and name != "eval/step" and not name.endswith(beside)
