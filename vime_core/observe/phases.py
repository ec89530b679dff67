"""Where the time of a run goes, by phase.

A phase that is entered inside another stops the outer one's clock, so that phases never count a second twice and what
is left of a step's wall time is the framework's own. One clock belongs to one thread: the driver's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Phase = Literal["generate", "log_probs", "train", "sync", "offload", "eval", "save", "other"]

#: phases that are the work itself; the rest of a step is overhead
_WORK = ("generate", "log_probs", "train", "sync")
#: phases that happen beside steps and are no part of their time
_BESIDE = ("eval", "save")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step: ``wall`` from start to end, and by phase (without the phases inside each)."""

    wall: float
    phases: Mapping[str, float]

    @property
    def step(self) -> float:
        """Wall time without evaluation and checkpoints."""
        return self.wall - sum(self.phases.get(name, 0.0) for name in _BESIDE)

    @property
    def overhead_ratio(self) -> float | None:
        """Share of :attr:`step` outside generation, log-probs, training and sync; None for a step of no length."""
        if self.step <= 0:
            return None
        return 1.0 - sum(self.phases.get(name, 0.0) for name in _WORK) / self.step

    def metrics(self) -> dict[str, float]:
        """``perf/...`` by the catalogue. A phase that did not happen is absent."""
        p, training = self.phases, [self.phases[name] for name in ("log_probs", "train") if name in self.phases]
        found: dict[str, float | None] = {
            "perf/step_time": self.step,
            "perf/rollout_time": p.get("generate"),
            "perf/train_time": sum(training) if training else None,
            "perf/train_wait_time": self.step - sum(training) if training else None,
            "perf/log_probs_time": p.get("log_probs"),
            "perf/actor_train_time": p.get("train"),
            "perf/update_weights_time": p.get("sync"),
            "perf/offload_time": p.get("offload"),
            "perf/eval_time": p.get("eval"),
            "perf/save_model_time": p.get("save"),
            "perf/overhead_ratio": self.overhead_ratio,
        }
        return {name: value for name, value in found.items() if value is not None}


class PhaseClock:
    """``with clock.phase("generate"): ...`` between :meth:`start_step` and :meth:`end_step`.

    Phases outside a step count in :attr:`totals` only.

    Args:
        now: monotonic seconds.
        on_enter: told the name of each phase that begins, and of the outer one that goes on after an inner one.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, on_enter: Callable[[str], None] | None = None
    ) -> None:
        self._now = now
        self._on_enter = on_enter or (lambda name: None)
        self._begun = self._mark = self._step_begun = now()
        self._stack: list[str] = []
        self._totals: dict[str, float] = {}
        self._step: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Time what happens inside, less what inner phases take."""
        self._charge()
        self._stack.append(name)
        self._on_enter(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()
            if self._stack:
                self._on_enter(self._stack[-1])

    def start_step(self) -> None:
        """Begin a step now."""
        self._charge()
        self._step, self._step_begun = {}, self._mark

    def end_step(self) -> StepTimes:
        """The times of the step that began at the last :meth:`start_step`."""
        self._charge()
        return StepTimes(self._mark - self._step_begun, dict(self._step))

    def split(self, source: Phase, part: Phase, seconds: float) -> None:
        """Move ``seconds`` of ``source`` to ``part``: what a worker measured inside a call that the driver timed.

        At most what ``source`` has in this step is moved, so that a worker's clock never makes time negative.
        """
        moved = max(0.0, min(seconds, self._step.get(source, 0.0)))
        for times in (self._step, self._totals):
            times[source] = times.get(source, 0.0) - moved
            times[part] = times.get(part, 0.0) + moved

    @property
    def totals(self) -> dict[str, float]:
        """Seconds by phase since the clock was made; what no phase claims is "other"."""
        self._charge()
        rest = (self._mark - self._begun) - sum(self._totals.values())
        totals = {**self._totals, "other": self._totals.get("other", 0.0) + rest}
        return {name: seconds for name, seconds in totals.items() if seconds > 0}

    @property
    def wall(self) -> float:
        """Seconds since the clock was made."""
        return self._now() - self._begun

    def _charge(self) -> None:
        """Give the time since the last mark to the innermost phase."""
        now = self._now()
        if self._stack:
            name, seconds = self._stack[-1], now - self._mark
            self._totals[name] = self._totals.get(name, 0.0) + seconds
            self._step[name] = self._step.get(name, 0.0) + seconds
        self._mark = now
