"""The border with an algorithm: each of its stages is called here, and what it gives is held against its contract.

A fault names the algorithm, the plugin it comes from and the stage. Stages get a copy of the batch; one that writes
into it, or into a micro-batch's view, is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch

from vime_core.api import Advantages, TrainerError, VimeError
from vime_core.batch import StageBatch
from vime_core.plugin import BLAMABLE, raised, short

if TYPE_CHECKING:
    from vime_core.algorithms.loss import MicroView
    from vime_core.algorithms.objective import Objective
    from vime_core.api import Options
    from vime_core.batch import StepBatch

T = TypeVar("T")
#: what a stage returns
Correction = tuple[torch.Tensor | None, Mapping[str, torch.Tensor]]
Surrogate = tuple[torch.Tensor, Mapping[str, torch.Tensor]]


class DeclaredOptions(Mapping[str, Any]):
    """Options as an algorithm sees them: they cannot be changed, and one without a default is named."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __getitem__(self, name: str) -> Any:
        if name not in self._options:
            raise TrainerError(f"there is no option {name!r}: add it to `defaults`")
        return self._options[name]

    def __contains__(self, name: object) -> bool:
        return name in self._options

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def get(self, name: str, default: Any = None) -> Any:
        return self._options.get(name, default)


def refuse(objective: Objective, stage: str, what: str) -> NoReturn:
    """Raises:
    TrainerError: ``what`` is wrong with a stage.
    """
    raise TrainerError(f"{objective.who}: {stage} {what}")


def select(objective: Objective, batch: StepBatch) -> torch.Tensor:
    """[N] bool."""
    found = _on_batch(objective, "select", batch, objective.algorithm.select)
    check_tensor(objective, "select", found, len(batch))
    if found.dtype != torch.bool:
        refuse(objective, "select", f"gave {found.dtype}, expected torch.bool")
    return found


def advantages(objective: Objective, batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
    """([R] advantages, [R] a critic's targets or None)."""
    found = _on_batch(objective, "advantages", batch, objective.algorithm.advantages)
    parts = found if isinstance(found, Advantages) else Advantages(found, None)  # type: ignore[arg-type]
    for stage, x in (("advantages", parts.advantage), ("advantages (returns)", parts.returns)):
        if x is None and stage != "advantages" and not isinstance(found, Advantages):
            continue
        check_tensor(objective, stage, x, batch.response_tokens)
        if not x.is_floating_point():
            refuse(objective, stage, f"gave {x.dtype}, expected floating-point numbers: convert before dividing")
    return parts.advantage, parts.returns


def correction(objective: Objective, batch: StepBatch) -> Correction:
    """([R] weights or None, metrics [R])."""
    found = _on_batch(objective, "correction", batch, objective.algorithm.correction)
    weight, metrics = _pair(objective, "correction", found, "([R] weights or None, metrics by name)")
    if weight is not None:
        check_tensor(objective, "correction", weight, batch.response_tokens)
    for name, x in metrics.items():
        check_tensor(objective, f"correction (metric {name!r})", x, batch.response_tokens)
    return weight, metrics


def surrogate(objective: Objective, view: MicroView, advantage: torch.Tensor) -> Surrogate:
    """([r] loss, metrics [r])."""
    stage, columns = "surrogate", {**view.columns(), "advantage": advantage}
    versions = {name: x._version for name, x in columns.items()}
    options = DeclaredOptions(objective.options)
    found = _called(objective, stage, lambda: objective.algorithm.surrogate(view, advantage, options))
    written = [name for name, x in columns.items() if x._version != versions[name]]
    if written:
        refuse(objective, stage, f"changed {', '.join(written)} in place; make a new tensor")
    loss, metrics = _pair(objective, stage, found, "([r] loss, metrics by name)")
    for name, x in {stage: loss, **metrics}.items():
        check_tensor(objective, stage if name == stage else f"{stage} (metric {name!r})", x, len(view.mask))
    return loss, metrics


def check_tensor(objective: Objective, stage: str, x: object, size: int) -> None:
    """Raises:
    TrainerError: it is none of shape [size].
    """
    if not isinstance(x, torch.Tensor):
        refuse(objective, stage, f"gave {short(x)}, expected a tensor of shape ({size},)")
    if tuple(x.shape) != (size,):
        refuse(objective, stage, f"has shape {tuple(x.shape)}, expected ({size},)")


def _pair(objective: Objective, stage: str, found: object, expected: str) -> tuple[Any, Mapping[str, Any]]:
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping):
        return found
    refuse(objective, stage, f"gave {short(found)}, it must return {expected}")


def _on_batch(objective: Objective, stage: str, batch: StepBatch, call: Callable[..., T]) -> T:
    seen, options = StageBatch.copy_of(batch), DeclaredOptions(objective.options)
    found = _called(objective, stage, lambda: call(seen, options))
    written = seen.written()
    if written:
        refuse(objective, stage, f"changed {', '.join(written)} of the batch in place; clone it first")
    return found


def _called(objective: Objective, stage: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except VimeError as error:
        raise TrainerError(f"{objective.who}: {stage}: {error}") from error
    except BLAMABLE as error:
        file = getattr(sys.modules.get(type(objective.algorithm).__module__), "__file__", None)
        raise TrainerError(f"{objective.who}: {stage}: {raised(f'{objective.who}: {stage}', error, file)}") from error
