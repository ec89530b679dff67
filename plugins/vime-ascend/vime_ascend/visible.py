"""ASCEND_RT_VISIBLE_DEVICES: numbers in numeric order, ranges too; empty is the same as not set."""

from __future__ import annotations

from vime_core.api import VisibleDevices

VISIBLE = VisibleDevices("ASCEND_RT_VISIBLE_DEVICES", ranges=True)
#: Ray's name of the resource
RESOURCE = "NPU"
