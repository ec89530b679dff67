"""The core's suite for weight syncs over the stream: real actors, a real transaction, faults on order."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from vime_ascend.config import AscendOptions
from vime_testing import WeightSyncSuite

if TYPE_CHECKING:
    from vime_core import Config


@pytest.mark.slow
class TestStream(WeightSyncSuite):
    plugin = "ascend"
    target = "ascend/stream"


@pytest.mark.slow
class TestStreamOfChanges(WeightSyncSuite):
    plugin = "ascend"
    target = "ascend/stream"

    def config(self) -> Config:
        made = super().config()
        return dataclasses.replace(made, plugins={**made.plugins, "ascend": AscendOptions(delta=True)})
