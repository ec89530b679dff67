"""First thing in every process: an engine sees its own devices only."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from vime_core.api import assigned_devices
from vime_cuda.visible import NOSET, RESOURCE, VISIBLE

_YES = ("1", "true")


def started(role: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Idempotent. Ray narrows the list by itself unless it is told not to; a trainer rank then finds its device by
    place, but vLLM takes the first ones of the list, whatever Ray reserved."""
    environ = os.environ if environ is None else environ
    if role == "engine" and environ.get(NOSET, "").lower() in _YES:
        VISIBLE.narrow(environ, assigned_devices(RESOURCE))
