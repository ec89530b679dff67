"""vime: reinforcement-learning post-training of language models.

The names a plugin author needs are here and arrive when first used; importing the package costs nothing.
"""

from __future__ import annotations

from typing import Any

#: raised only when an existing plugin must change
API_VERSION = 1

#: public name -> module that holds it
_PUBLIC = {
    "Config": "vime_core.config.sections",
    "Sample": "vime_core.api.sample",
    "Group": "vime_core.api.sample",
    "Status": "vime_core.api.sample",
    "Score": "vime_core.api.reward",
    "Unscored": "vime_core.api.reward",
    "DeviceBackend": "vime_core.api.device",
    "TorchDevice": "vime_core.devices.torch_device",
    "WeightSync": "vime_core.api.weight_sync",
    "Receipt": "vime_core.api.weight_sync",
    "Algorithm": "vime_core.api.algorithm",
    "RolloutGenerator": "vime_core.api.rollout",
    "SamplingParams": "vime_core.api.rollout",
    "Environment": "vime_core.api.environment",
    "VimeError": "vime_core.api.errors",
    "hookimpl": "vime_core.hookspecs",
}

__all__ = ["API_VERSION", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vime-core")
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'vime_core' has no attribute {name!r}")
