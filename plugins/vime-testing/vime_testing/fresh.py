"""Run as a module in a process of its own: what loading a plugin, its probes and its process hooks really do there.

``python -m vime_testing.fresh SPEC`` prints one JSON object. A test process has imported torch long ago, so only a
fresh interpreter can tell whether a plugin would.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from vime_core.plugin import BLAMABLE, one_line

#: what ``vime plugins list`` and every worker's start must not wait for
HEAVY = ("torch", "numpy", "pydantic", "rich", "typer", "vllm", "ray", "transformers", "megatron", "mbridge")
ROLES = ("driver", "trainer", "engine", "rollout")


def examine(spec: str) -> dict[str, Any]:
    """Load a plugin here and look at what came with it.

    Raises:
        PluginError: it cannot be loaded.
    """
    from vime_core.plugin import Plugins

    plugins = Plugins.load([spec], autoload=False, strict=True, environ={})
    found: dict[str, Any] = {"loading": _heavy()}
    for registry in plugins.registries().values():
        for provider in registry:
            provider.available()
    found["probes"] = [name for name in _heavy() if name not in found["loading"]]
    found["twice"], found["raised"] = _start_twice(plugins)
    return found


def _start_twice(plugins: Any) -> tuple[list[str], str]:
    """What a second ``vime_process_started`` changed, and what it raised."""
    for role in ROLES:
        try:
            plugins.process_started(role)
            before = _state()
            plugins.process_started(role)
        except BLAMABLE as error:
            return [], f"{role}: {one_line(error)}"
        after = _state()
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if changed:
            return changed, ""
    return [], ""


def _state() -> dict[str, object]:
    """Variables, import path, and every function or class of every module: what an adaptor may patch."""
    state: dict[str, object] = {f"environment {name}": value for name, value in os.environ.items()}
    state["sys.path"] = tuple(sys.path)
    for name, module in list(sys.modules.items()):
        values = getattr(module, "__dict__", {})
        state |= {f"{name}.{key}": id(value) for key, value in list(values.items()) if callable(value)}
    return state


def _heavy() -> list[str]:
    return [name for name in HEAVY if name in sys.modules]


if __name__ == "__main__":
    print(json.dumps(examine(sys.argv[1])))
