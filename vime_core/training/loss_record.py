"""Keeps what a step's loss was computed from, in the format of :mod:`vime_core.observe.loss_inputs`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vime_core.batch import SCHEMA
from vime_core.observe import LossInputs, write_loss_inputs

if TYPE_CHECKING:
    from vime_core.algorithms import Prepared
    from vime_core.batch import BatchPlan, StepBatch


@dataclass(frozen=True)
class OptimizerStep:
    """One that was taken: its samples, and its metrics (complete on the last pipeline stage)."""

    plan: BatchPlan
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class LossRecord:
    """Writes a file a step into ``folder``. ``facts`` are those that hold for the whole run."""

    folder: Path
    facts: Mapping[str, Any]

    def write(
        self, step: int, batch: StepBatch, prepared: Prepared, done: Sequence[OptimizerStep], logp: torch.Tensor
    ) -> None:
        """Args:
        batch: with every column, before the stages. done: the optimizer steps. logp: [R] of the training passes.
        """
        stages = _stage_columns(prepared, [one.plan for one in done])
        columns = {**_batch_columns(batch), **stages, "logp": logp.numpy()}
        facts = {
            **self.facts,
            "aggregation": prepared.aggregation,
            "fixed_length": prepared.length,
            "axes": {name: axis for name, (axis, _) in _further(batch).items()},
            "optimizer_steps": [dict(one.metrics) for one in done],
        }
        write_loss_inputs(self.folder, step, LossInputs(columns, facts))


def plain(value: Any) -> Any:
    """Options and terms as JSON knows them; what it does not know by its name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(x) for x in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "name", None) or getattr(value, "__name__", None) or type(value).__name__


def _further(batch: StepBatch) -> dict[str, tuple[str, np.ndarray]]:
    """Columns beyond the standard ones with one number a sample or response token."""
    return {name: (axis, x) for name, (axis, x) in batch.extra.items() if axis != "token" and x.ndim == 1}


def _batch_columns(batch: StepBatch) -> dict[str, np.ndarray]:
    columns = {name: getattr(batch, name) for name in SCHEMA}
    columns |= {name: x for name, (_, x) in _further(batch).items()}
    return columns if batch.old_logp is None else {**columns, "old_logp": batch.old_logp}


def _stage_columns(prepared: Prepared, plans: Sequence[BatchPlan]) -> dict[str, np.ndarray]:
    weight = torch.zeros(prepared.batch.response_tokens, dtype=torch.float64)
    optimizer_step = torch.zeros(len(prepared.batch), dtype=torch.int64)
    for number, plan in enumerate(plans):
        weight += prepared.weight(plan.samples)  # 0 outside the plan, and a sample is in one plan only
        optimizer_step[torch.as_tensor(plan.samples, dtype=torch.int64)] = number
    columns = {
        "shaped_reward": prepared.batch.t("reward"),
        "selected": prepared.selected,
        "trained": prepared.mask,
        "advantage": prepared.advantage,
        "weight": weight,
        "optimizer_step": optimizer_step,
        "returns": prepared.returns,
        "correction": prepared.correction,
    }
    return {name: x.numpy() for name, x in columns.items() if x is not None}
