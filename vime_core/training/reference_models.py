"""The models that take turns with the policy in one model: the reference and the teacher, each a weight set.

Both are loaded once. The reference may follow the policy: after every ``ref_update_interval`` rollout steps it becomes
the policy as it is then. That happens at the start of the next step, so a checkpoint taken in between and a run that
goes on see the same reference. Once it has left its folder's weights it is part of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.api import ConfigError
from vime_core.config import check_same_architecture
from vime_core.training.weight_swap import WeightSwap

if TYPE_CHECKING:
    import torch

    from vime_core.api import DeviceBackend
    from vime_core.config import Config
    from vime_core.training.model import MegatronModel

REFERENCE, TEACHER = "ref", "teacher"
#: weight set -> the column of the batch that it computes
COLUMNS: Mapping[str, str] = {REFERENCE: "ref_logp", TEACHER: "teacher_logp"}

_OPTIONS = {REFERENCE: "--ref-load", TEACHER: "--opd-teacher-load"}
_PREFIX = f"{REFERENCE}."


def reference_model_folders(config: Config, needs: Collection[str], folder: str) -> dict[str, str]:
    """Weight set -> Hugging Face folder that it is loaded from.

    Args:
        needs: columns that the step needs. folder: the policy's.

    Raises:
        ConfigError: a folder is missing, or its model is of another architecture than the policy's.
    """
    found: dict[str, str] = {}
    if COLUMNS[REFERENCE] in needs:
        found[REFERENCE] = config.model.ref_load or folder
    if COLUMNS[TEACHER] in needs and config.algorithm.opd_type == "megatron":
        if config.model.opd_teacher_load is None:
            raise ConfigError("opd_type megatron: give --opd-teacher-load, the Hugging Face folder of the teacher")
        found[TEACHER] = config.model.opd_teacher_load
    for name, other in found.items():
        if other != folder:
            check_same_architecture(folder, other, _OPTIONS[name])
    return found


class ReferenceModels:
    """Use :meth:`load` while the model holds the weights of its own folder."""

    def __init__(self, sets: WeightSwap, interval: int | None) -> None:
        self.sets = sets
        self._interval = interval
        #: the reference is no longer what its folder holds
        self._moved = False
        #: the policy is no longer what this run started from
        self._trained = False

    @classmethod
    def load(
        cls, config: Config, model: MegatronModel, device: DeviceBackend, folders: Mapping[str, str]
    ) -> ReferenceModels:
        """Fill the weight sets. Collective. folders: from :func:`reference_model_folders`."""
        sets = WeightSwap(model, device)
        for name, folder in folders.items():
            if Path(folder).samefile(model.hf_folder):
                sets.keep(name)
            else:
                sets.load(name, folder)
        return cls(sets, config.model.ref_update_interval if REFERENCE in folders else None)

    def columns(self) -> Iterator[tuple[str, str]]:
        """(weight set, column that it computes)."""
        return ((name, column) for name, column in COLUMNS.items() if name in self.sets)

    def before_step(self, step: int) -> None:
        """Let the reference follow, if it is due before rollout step ``step``."""
        if self._interval and self._trained and step % self._interval == 0:
            self.sets.keep(REFERENCE)
            self._moved = True
        self._trained = True

    # checkpoints ---------------------------------------------------------------------------------------------
    def tensors(self) -> dict[str, torch.Tensor]:
        """The reference, once it has moved."""
        weights = self.sets.tensors(REFERENCE) if self._moved else {}
        return {_PREFIX + name: tensor for name, tensor in weights.items()}

    def resume(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from a checkpoint. tensors: all of this rank's.

        Raises:
            CheckpointError: the reference in it is not of this model.
        """
        self._trained = True
        mine = {name.removeprefix(_PREFIX): x for name, x in tensors.items() if name.startswith(_PREFIX)}
        if mine and REFERENCE in self.sets:
            self.sets.put_tensors(REFERENCE, mine)
            self._moved = True
