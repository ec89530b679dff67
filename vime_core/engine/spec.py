"""What one engine is started with, worked out once from the configuration and the device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.errors import ConfigError

if TYPE_CHECKING:
    from vime_core.config.sections import Config
    from vime_core.interfaces.device import DeviceBackend

#: name under which the weight-transfer engine is registered with vLLM
TRANSFER_BACKEND = "vime"


@dataclass(frozen=True)
class EngineSpec:
    """One engine. ``arguments`` are vLLM's engine arguments under vLLM's names, as Python values.

    Attributes:
        index: position among the run's engines.
        model: Hugging Face folder that the engine loads as version 0.
        arguments: device's < this module's needs of correctness never overridden < user's ``--vllm-*``.
        environment: variables that must stand before vLLM is imported.
        port: 0 lets the engine choose a free one.
    """

    index: int
    model: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def tensor_parallel_size(self) -> int:
        return int(self.arguments["tensor_parallel_size"])

    @property
    def name(self) -> str:
        return f"engine {self.index}"


def engine_specs(config: Config, device: DeviceBackend, hf_folder: str) -> list[EngineSpec]:
    """One spec for each engine that vime starts.

    Raises:
        ConfigError: a ``--vllm-*`` value that would break what the run relies on.
    """
    raise NotImplementedError
