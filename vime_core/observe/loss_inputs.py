"""What the loss of a step was computed from, kept in the run folder: ``loss/step_000012.safetensors``, one a step.

From such a file the way from rewards and log-probs to every token's share of the loss can be computed again on a CPU,
without a model. It needs numpy and safetensors only.

Columns are named and shaped as in the step batch (N samples, T tokens, R response tokens end to end in sample order):

=====================================  =====  ========================================================================
column                                 shape
=====================================  =====  ========================================================================
tokens                                 [T]    prompt and response ids
total_lengths, response_lengths        [N]
reward, group, rollout, truncated      [N]
mask, rollout_logp, version            [R]    as they came from the rollout
further columns of the batch           [R]    ``ref_logp``, ``teacher_logp``, ``values``, a plugin's; or [N]
old_logp                               [R]    only where it was computed before the stages; else ``logp`` stands for it
shaped_reward                          [N]    float64, what advantages read: the reward with the step's penalties
logp                                   [R]    of the pass whose gradient the token's optimizer step applied
selected                               [N]    bool, samples that count (``Algorithm.select``, and a reward where needed)
trained                                [R]    bool, trainable tokens: the mask of selected samples, less what a
                                              correction took out of the denominators
advantage                              [R]    float32, after whitening and the teacher's term; 0 where not selected
returns                                [R]    float32 targets of the critic; only with a critic
correction                             [R]    float32; absent where all are 1
weight                                 [R]    float64 of the aggregation, counted over the token's optimizer step
optimizer_step                         [N]    int64: 0, 1, ... within this rollout step
=====================================  =====  ========================================================================

Facts, a JSON object in the header under the key ``vime``:

``format`` (1), ``step``, ``algorithm`` (its name), ``aggregation``, ``fixed_length`` (or null), ``options`` (of the
algorithm, resolved), ``terms`` (of the trainer: entropy, KL, correction, ...), ``temperature``, ``global_batch``
(rollouts an optimizer step), ``axes`` (further column -> "sample" or "response"), and ``optimizer_steps``: for each of
them the metrics that the trainer computed (``loss``, ``pg_loss``, ``grad_norm``, ...), to compare with.

A step that trained the critic alone leaves no file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vime_core.api import DataError

#: of this description
FORMAT = 1

_FACTS = "vime"
_NAME = re.compile(r"step_(\d+)\.safetensors$")


@dataclass(frozen=True)
class LossInputs:
    """Contents of one file: ``columns`` and ``facts`` as the module describes them."""

    columns: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]


def path_of(folder: Path, step: int) -> Path:
    """The file of rollout step ``step``. folder: the run folder's ``loss``."""
    return folder / f"step_{step:06d}.safetensors"


def steps_of(folder: Path) -> list[int]:
    """Steps that have a file, in order."""
    names = (p.name for p in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(found.group(1)) for name in names if (found := _NAME.match(name)))


def write_loss_inputs(folder: Path, step: int, inputs: LossInputs) -> Path:
    """Write the file, atomically, and make the folder if need be."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    target = path_of(folder, step)
    whole = {name: np.ascontiguousarray(column) for name, column in inputs.columns.items()}
    facts = {"format": FORMAT, "step": step, **inputs.facts}
    unfinished = target.with_suffix(".partial")
    save_file(whole, str(unfinished), metadata={_FACTS: json.dumps(facts)})
    os.replace(unfinished, target)
    return target


def read_loss_inputs(folder: Path, step: int) -> LossInputs:
    """Read the file of ``step``.

    Raises:
        DataError: there is none (says which there are), or it is of another format.
    """
    from safetensors import SafetensorError, safe_open

    path = path_of(folder, step)
    if not path.is_file():
        have = ", ".join(map(str, steps_of(folder))) or "none"
        raise DataError(
            f"{folder} has no loss inputs of step {step} (there are: {have}); --save-loss-inputs keeps them"
        )
    try:
        with safe_open(str(path), framework="numpy") as file:
            facts = json.loads((file.metadata() or {})[_FACTS])
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} is not a file of loss inputs: {type(error).__name__}: {error}") from error
    if facts.get("format") != FORMAT:
        raise DataError(f"{path} has format {facts.get('format')}, this version reads {FORMAT}")
    return LossInputs(columns, facts)
