"""Lists of visible devices, as each of the two runtimes reads them: one table of right answers a device."""

from __future__ import annotations

import pytest
from vime_ascend.visible import VISIBLE as ASCEND
from vime_cuda.visible import VISIBLE as CUDA
from vime_cuda.visible import partitions

from vime_core.api import ConfigError, VisibleDevices, by_number
from vime_core.devices.cpu import CpuBackend
from vime_core.devices.torch_device import TorchDevice


@pytest.mark.parametrize(
    ("device", "text", "seen"),
    [
        (CUDA, None, None),
        (CUDA, "", []),
        (CUDA, "0", ["0"]),
        (CUDA, "4, 5,GPU-8f1c,MIG-1/0/0", ["4", "5", "GPU-8f1c", "MIG-1/0/0"]),
        (CUDA, "1,-1,2", ["1"]),
        (CUDA, "-1", []),
        (ASCEND, None, None),
        (ASCEND, "", None),
        (ASCEND, "4,5", ["4", "5"]),
        (ASCEND, "0-3", ["0", "1", "2", "3"]),
        (ASCEND, "12-15, 3", ["12", "13", "14", "15", "3"]),
    ],
)
def test_what_a_process_sees(device: VisibleDevices, text: str | None, seen: list[str] | None) -> None:
    assert device.seen({} if text is None else {device.variable: text}) == seen


@pytest.mark.parametrize(
    ("device", "text"),
    [(CUDA, text) for text in ("0,gpu1", "0-3", "0,1,0", "GPU-a,GPU-a")]
    + [(ASCEND, text) for text in ("0,npu1", "0-", "-1", "0,1,0", "0-3,2", "GPU-a")],
)
def test_lists_that_are_none(device: VisibleDevices, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{device.variable}={text}: "):
        device.parse(text)


def test_an_index_is_a_place_in_the_list_and_not_an_id() -> None:
    assert ASCEND.index_of("6", ["4", "5", "6", "7"]) == CUDA.index_of("6", ["4", "5", "6", "7"]) == 2
    assert CUDA.index_of("GPU-22ab", ["GPU-8f1c", "GPU-22ab"]) == 1
    assert CUDA.index_of("6", None) == ASCEND.index_of("6", None) == 6
    with pytest.raises(ConfigError, match="device 1 is not among the visible ones: CUDA_VISIBLE_DEVICES=4,5"):
        CUDA.index_of("1", ["4", "5"])
    with pytest.raises(ConfigError, match=r"device GPU-a is not among the visible ones: .*\(unset\)"):
        CUDA.index_of("GPU-a", None)


class OnCuda(TorchDevice):
    visible_devices = CUDA
    engine_arguments = CpuBackend.engine_arguments
    ray_options = CpuBackend.ray_options


class OnAscend(OnCuda):
    visible_devices = ASCEND


@pytest.mark.parametrize(
    ("kind", "text", "indices"),
    [
        (OnAscend, "0-3", [0, 1, 2, 3]),
        (OnAscend, "", [0, 1, 2, 3]),
        (OnCuda, None, [0, 1, 2, 3]),
        (OnCuda, "1,-1,2", [0, 0, 0, 0]),
        (OnCuda, "GPU-8f1c,GPU-22ab,-1,7", [0, 1, 0, 1]),
    ],
)
def test_ranks_of_a_node_take_devices_that_exist(kind, text, indices, monkeypatch) -> None:
    monkeypatch.delenv(kind.visible_devices.variable, raising=False)
    if text is not None:
        monkeypatch.setenv(kind.visible_devices.variable, text)
    assert [kind().local_index(rank) for rank in range(4)] == indices


@pytest.mark.parametrize("text", ["", "-1,0"])
def test_a_rank_that_sees_no_device_is_told(text: str, monkeypatch) -> None:
    monkeypatch.setenv(CUDA.variable, text)
    with pytest.raises(ConfigError, match="no device is visible: CUDA_VISIBLE_DEVICES hides them"):
        OnCuda().local_index(0)


def test_devices_are_ordered_by_number_and_others_come_last() -> None:
    assert by_number(["10", "MIG-b", "2", "GPU-a", "0"]) == "0,2,10,GPU-a,MIG-b"
    assert (partitions(["MIG-a", "MIG-b", "0"]), partitions(None)) == (2, 0)
