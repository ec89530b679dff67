"""First thing in every process: what has to happen before torch, megatron or vLLM is imported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import MutableMapping
from typing import Any

from vime_ascend.environment import MARK
from vime_ascend.probe import AUTOLOAD, look
from vime_ascend.visible import RESOURCE, VISIBLE
from vime_core.api import assigned_devices


def started(role: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Idempotent. Does nothing in a process of a run on another device, except to keep ``import torch`` alive in it."""
    environ = os.environ if environ is None else environ
    mark = handed_down(environ)
    if mark is None:
        if role in ("driver", "rollout") and "torch" not in sys.modules and look(environ=environ).broken_torch:
            environ[AUTOLOAD] = "0"
        return
    if mark["role"] == "engine":
        # by number: vLLM takes the first of the list, whatever Ray reserved
        VISIBLE.narrow(environ, assigned_devices(RESOURCE))
    if mark["role"] == "trainer" and mark["trainer"] == "mindspeed":
        from vime_ascend.mindspeed import MindSpeed

        MindSpeed().install()


def handed_down(environ: MutableMapping[str, str]) -> dict[str, Any] | None:
    """What the driver said about this process; None where it is none of a run on NPUs."""
    text = environ.get(MARK)
    return json.loads(text) if text else None
