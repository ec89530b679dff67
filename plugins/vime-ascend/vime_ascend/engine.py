"""What vLLM is started with on NPUs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime_ascend.config import AscendOptions


def engine_arguments(options: AscendOptions, knows_rl: bool) -> dict[str, Any]:
    """Arguments under vLLM's names; sleep mode is the core's to ask for.

    Args:
        knows_rl: the installed vllm-ascend has ``additional_config.rl_config``; others refuse the key.
    """
    extra: dict[str, Any] = {"weight_nz_mode": 0}
    if knows_rl:
        extra["rl_config"] = {"enabled": True}
    return {"additional_config": extra, "enforce_eager": not options.graphs}


def knows_rl_config() -> bool:
    """Does the installed vllm-ascend know the key? Read from its source: importing it needs an NPU."""
    found = importlib.util.find_spec("vllm_ascend")
    if found is None or not found.origin:
        return False
    file = Path(found.origin).with_name("ascend_config.py")
    return file.is_file() and '"rl_config"' in file.read_text(encoding="utf-8", errors="replace")


def merged(ours: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """Our ``additional_config`` under the user's: theirs replaces single keys, not the whole table."""
    theirs = user.get("additional_config")
    if not isinstance(theirs, Mapping):
        return dict(ours)
    return {**ours, "additional_config": {**ours["additional_config"], **theirs}}
