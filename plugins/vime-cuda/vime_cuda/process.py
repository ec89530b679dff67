"""First thing in every process: an engine sees its own devices only."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence

from vime_cuda.visible import NOSET, VARIABLE

_YES = ("1", "true")


def started(role: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Idempotent. Ray narrows the list by itself unless it is told not to; a trainer rank then finds its device by
    place, but vLLM takes the first ones of the list, whatever Ray reserved."""
    environ = os.environ if environ is None else environ
    if role == "engine" and environ.get(NOSET, "").lower() in _YES:
        narrow(environ, assigned_devices())


def narrow(environ: MutableMapping[str, str], assigned: Sequence[str]) -> None:
    if assigned:
        environ[VARIABLE] = ",".join(assigned)


def assigned_devices() -> list[str]:
    """What Ray reserved for this actor, as Ray names it; [] outside of Ray or where it reserved none."""
    import sys

    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return []
    given = [str(one) for one in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]
    return sorted(given, key=lambda one: (not one.isdigit(), int(one) if one.isdigit() else 0, one))
