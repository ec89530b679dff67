"""The batch as code of an algorithm sees it: its own copy, so that nothing it does reaches another stage or rank."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NoReturn

import numpy as np
import torch

from vime_core.batch.step_batch import StepBatch


class StageBatch(StepBatch):
    """Made by :meth:`copy_of` for one call. The original lies in memory that all ranks of a machine share, and torch
    has no tensors that cannot be written."""

    _handed_out: dict[str, tuple[torch.Tensor, int]]

    @classmethod
    def copy_of(cls, batch: StepBatch) -> StageBatch:
        columns: dict[str, Any] = {f.name: getattr(batch, f.name) for f in fields(StepBatch)}
        columns |= {name: array.copy() for name, array in columns.items() if isinstance(array, np.ndarray)}
        columns["extra"] = {name: (axis, array.copy()) for name, (axis, array) in batch.extra.items()}
        return cls(**columns)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_handed_out", {})

    def t(self, name: str) -> torch.Tensor:
        """As of the original. Raises TrainerError for a column that is not there."""
        if name not in self._handed_out:
            tensor = super().t(name)
            self._handed_out[name] = (tensor, tensor._version)
        return self._handed_out[name][0]

    def written(self) -> list[str]:
        """Columns that were changed in place through :meth:`t`."""
        return [name for name, (tensor, version) in self._handed_out.items() if tensor._version != version]

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the batch has no {name!r}; columns that `needs` names are read by batch.t({name!r})")
