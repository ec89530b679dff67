"""Columns that the trainer itself adds to a step batch before the algorithm's stages.

Log-probs of the policy before the step, of the reference and of the teacher, and a critic's values: one forward pass
each, packed as in training unless asked otherwise, so that models with equal weights give numbers that are equal to the
bit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vime_core.training.reference_models import TEACHER

if TYPE_CHECKING:
    from vime_core.batch import StepBatch
    from vime_core.training.critic import Critic
    from vime_core.training.forward_backward import LogprobRunner
    from vime_core.training.reference_models import ReferenceModels


@dataclass(frozen=True)
class Columns:
    """Fills batches. Every rank takes part; ranks of stages before the last get zeros, which nobody there reads but
    which let them run the same whole-step code."""

    passes: LogprobRunner
    reference_models: ReferenceModels
    critic: Critic | None = None

    def fill(
        self, batch: StepBatch, mine: Sequence[Sequence[int]], *, old_logp: bool
    ) -> tuple[StepBatch, dict[str, float]]:
        """(the batch with every column, seconds of each pass under its metric's name).

        Args:
            mine: this data-parallel rank's micro-batches of the whole rollout step.
            old_logp: the policy's own log-probs are wanted before the stages.
        """
        times: dict[str, float] = {}
        for name, column in self.reference_models.columns():
            clock = time.monotonic()
            # a teacher's experts are others than the policy's; the reference's are former ones of the policy
            own = self.passes.replay.off() if name == TEACHER else nullcontext()
            with self.reference_models.sets.use(name), own:
                batch = batch.with_columns(**{column: self._whole(batch, self.passes.logprobs(batch, mine))})
            times[f"perf/{name}_log_probs_time"] = time.monotonic() - clock
        if self.critic is not None:
            clock = time.monotonic()
            batch = batch.with_columns(values=self._whole(batch, self.critic.values(batch, mine)))
            times["perf/values_time"] = time.monotonic() - clock
        clock = time.monotonic()
        if old_logp or self.passes.replay.needs_old_logp:
            with self.passes.replay.recording():
                batch = batch.with_old_logp(self._whole(batch, self.passes.logprobs(batch, mine)))
        return batch, {**times, "perf/log_probs_time": time.monotonic() - clock}

    @staticmethod
    def _whole(batch: StepBatch, column: torch.Tensor | None) -> torch.Tensor:
        return torch.zeros(batch.response_tokens) if column is None else column
