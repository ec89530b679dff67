"""NPU carriers: where a device is, which sync a topology gets, and what both ends are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from vime_ascend.config import AscendOptions
from vime_ascend.sync.gloo import StreamGlooSync
from vime_ascend.sync.hccl import HcclChannel, HcclSync
from vime_ascend.sync.ipc import NpuIpcSync, place_of

from vime_core.api.weight_sync import Topology
from vime_core.config.sections import Config
from vime_core.plugin.targets import load_target
from vime_core.weights.receiver import StreamReceiver, make_receiver
from vime_core.weights.sender import StreamPublisher


@pytest.mark.parametrize(
    ("index", "environ", "chip"),
    [(2, {}, 2), (1, {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"}, 5), (0, {"ASCEND_RT_VISIBLE_DEVICES": "5"}, 5)],
)
def test_a_place_is_the_physical_device(index: int, environ: dict[str, str], chip: int) -> None:
    assert place_of(index, environ, "host") == f"host-{chip}"


@pytest.mark.parametrize(
    ("device", "colocated", "external", "chosen"),
    [
        ("npu", False, False, "ascend/hccl"),
        ("npu", True, False, "ascend/npu_ipc"),
        ("npu", False, True, "core/shared_memory"),
        ("cpu", True, False, "core/shared_memory"),
    ],
)
def test_the_sync_follows_device_and_topology(vime_plugins, device, colocated, external, chosen) -> None:
    topology = Topology(device, 8, 4, 1, colocated, external)
    assert vime_plugins("ascend").choose_weight_sync(topology) == chosen


@pytest.mark.parametrize("sync", [HcclSync, NpuIpcSync, StreamGlooSync])
@pytest.mark.parametrize("delta", [False, True])
def test_both_ends_of_each_sync_are_made_by_name(sync: Any, delta: bool) -> None:
    config = dataclasses.replace(Config(), plugins={"ascend": AscendOptions(delta=delta)})
    publisher = load_target(sync.publisher)(config)
    assert isinstance(publisher, StreamPublisher)
    assert publisher.deltas == delta
    assert isinstance(make_receiver(sync.receiver), StreamReceiver)
    assert sync.every_rank_sends == (sync is NpuIpcSync)


def test_a_disabled_communicator_is_explained() -> None:
    assert (HcclChannel.library, "set_env.sh" in HcclChannel.remedy) == ("HCCL", True)
