"""A worker process as a run would start it, which says one thing about its device: ``python -m
vime_cli.doctor.device_child findings|shims|count ORDER``; ORDER is JSON, ``{"lock": [...], "device": NAME}``.

The last line that it prints is JSON: the backend's findings, the names of the shims that megatron got, or the number of
its devices.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from vime_core.api.device import DeviceBackend
from vime_core.plugin.plugins import Plugins


def device_of(order: dict[str, Any], role: str) -> DeviceBackend:
    """The backend, in a process that has started as one of ``role`` does."""
    plugins = Plugins.from_lock(order["lock"])
    plugins.process_started(role)
    return plugins.devices.resolve(order["device"])()


def findings(order: dict[str, Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(one) for one in device_of(order, "driver").doctor()]


def shims(order: dict[str, Any]) -> list[str]:
    return list(device_of(order, "trainer").adapt_megatron())


def count(order: dict[str, Any]) -> int:
    return device_of(order, "trainer").count()


ANSWERS = {"findings": findings, "shims": shims, "count": count}

if __name__ == "__main__":
    print("\n" + json.dumps(ANSWERS[sys.argv[1]](json.loads(sys.argv[2]))))
