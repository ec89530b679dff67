"""What the rules need to know from outside the configuration. ``None``: not known, and the rule keeps quiet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime_core.api import ConfigError


@dataclass(frozen=True)
class Facts:
    """Facts about model, algorithm and device.

    Args:
        model: contents of the checkpoint's config.json.
        model_types: Hugging Face ``model_type`` names that the trainer can load.
        refused_types: some that it refuses -> why.
        algorithm_defaults: option -> default of the chosen algorithm; other options are not read by it.
        group_based: the algorithm compares samples of a group.
        needs: what the algorithm under its options, and the terms around it, need a batch to hold.
        reads: what the algorithm itself reads, whatever its options.
        supplies: what the trainer can put into a batch.
        supports_colocate: the device can be shared by trainer and engines.
        supports_sleep: its engines can give their memory up.
    """

    model: Mapping[str, Any] | None = None
    model_types: frozenset[str] | None = None
    refused_types: Mapping[str, str] = field(default_factory=dict)
    algorithm_defaults: Mapping[str, Any] | None = None
    group_based: bool | None = None
    needs: frozenset[str] | None = None
    reads: frozenset[str] | None = None
    supplies: frozenset[str] | None = None
    supports_colocate: bool | None = None
    supports_sleep: bool | None = None

    def number(self, *names: str) -> int | None:
        """The first of these integers that the model's config.json has."""
        for name in names:
            value = (self.model or {}).get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    @property
    def experts(self) -> int | None:
        return self.number("num_experts", "num_local_experts", "n_routed_experts")


def read_model(hf_checkpoint: str | None) -> Mapping[str, Any] | None:
    """config.json of a checkpoint folder; None when there is no such file (a rule reports that).

    Raises ConfigError when the file is not a JSON object.
    """
    path = Path(hf_checkpoint or "") / "config.json"
    if not hf_checkpoint or not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: not readable as JSON ({error}); --hf-checkpoint names a Hugging Face folder"
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a JSON object; --hf-checkpoint names a Hugging Face folder")
    return data
