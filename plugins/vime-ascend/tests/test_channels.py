"""Carriers beside gloo: shared memory of two ends on one device, and what is refused before anything is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vime_ascend.sync.hccl import HcclSync, enabled
from vime_ascend.sync.ipc import IpcChannel, NpuIpcSync, from_text, machine, place_of, to_text
from vime_ascend.sync.receiver import StreamReceiver
from vime_ascend.sync.sender import StreamPublisher

from vime_core.engine.gloo_link import MeetingPoint
from vime_core.engine.manifest import Manifest
from vime_core.errors import SyncError
from vime_core.interfaces.weight_sync import Topology


class FileExporter:
    """Memory that two ends share through a file: what an NPU's handles do, on the CPU."""

    def __init__(self, folder: Path, chip: int) -> None:
        self.folder, self.chip = folder, chip

    def place(self) -> str:
        return f"here-{self.chip}"

    def empty(self, size: int) -> torch.Tensor:
        file = self.folder / f"{self.chip}-{size}"
        return torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)

    def export(self, flat: torch.Tensor) -> str:
        return to_text([str(self.folder / f"{self.chip}-{flat.numel()}"), flat.numel()])

    def open(self, handle: str) -> torch.Tensor:
        file, size = from_text(handle)
        return torch.from_file(file, shared=True, size=size, dtype=torch.uint8)

    def synchronize(self) -> None: ...


@pytest.fixture
def point() -> Iterator[MeetingPoint]:
    made = MeetingPoint("127.0.0.1")
    made.open()
    yield made
    made.close()


def terms(point: MeetingPoint, timeout: float = 20.0) -> dict[str, Any]:
    return {"host": point.host, "port": point.port, "group": "g", "world": 3, "bucket": 512, "timeout": timeout}


def in_threads(*work: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(work)

    def run(number: int) -> None:
        try:
            results[number] = work[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_each_trainer_rank_serves_the_worker_on_its_own_device(point, tmp_path) -> None:
    """Two devices: pieces smaller than a bucket, buckets larger than the shared buffer, two versions."""

    def channel(sends: bool, chip: int) -> Callable[[Any, int], IpcChannel]:
        return lambda agreed, rank: IpcChannel(agreed, rank, FileExporter(tmp_path, chip), sends)

    senders = [StreamPublisher("npu_ipc", channel(True, chip), 2048) for chip in (4, 5)]
    receivers = [StreamReceiver(channel(False, chip)) for chip in (4, 5)]
    agreed = terms(point)
    for version in (1, 2):
        wanted = [{"w": torch.full((700,), 10.0 * chip + version), "n": torch.arange(chip + 3)} for chip in (4, 5)]
        announced = Manifest(version, "npu_ipc", "", 0, (), agreed)
        for sender in senders:
            sender.open(agreed)
        sent0, sent1, got0, got1 = in_threads(
            lambda: senders[0].publish(wanted[0].items(), version),  # noqa: B023
            lambda: senders[1].publish(wanted[1].items(), version),  # noqa: B023
            lambda: receivers[0](announced, 1),  # noqa: B023
            lambda: receivers[1](announced, 2),  # noqa: B023
        )
        for sent, got, weights in ((sent0, got0, wanted[0]), (sent1, got1, wanted[1])):
            assert got.digest() == sent.digest
            assert all(torch.equal(tensor, weights[name]) for name, tensor in got.tensors())
    for end in (*senders, *receivers):
        end.close()


def test_a_device_without_its_other_end_is_named(point, tmp_path) -> None:
    agreed = terms(point, timeout=0.3)
    with pytest.raises(SyncError, match=r"IPC: a trainer rank on the same device .here-7. did not answer in time"):
        IpcChannel(agreed, 1, FileExporter(tmp_path, 7), sends=False)
    lonely = IpcChannel(agreed, 0, FileExporter(tmp_path, 8), sends=True)
    with pytest.raises(SyncError, match="IPC: an engine worker on the same device"):
        lonely.broadcast(torch.zeros(64, dtype=torch.uint8))
    assert not lonely.alive
    with pytest.raises(SyncError, match="closed"):
        lonely.broadcast(torch.zeros(64, dtype=torch.uint8))


def test_ends_that_are_out_of_step_notice(point, tmp_path) -> None:
    agreed = terms(point, timeout=2.0)
    sender = IpcChannel(agreed, 0, FileExporter(tmp_path, 1), sends=True)
    receiver = IpcChannel(agreed, 1, FileExporter(tmp_path, 1), sends=False)
    _, error = in_threads(
        lambda: sender.broadcast(torch.zeros(128, dtype=torch.uint8)),
        lambda: receiver.broadcast(torch.zeros(64, dtype=torch.uint8)),
    )
    assert "out of step" in str(error)
    assert not receiver.alive


def test_a_handle_is_plain_values() -> None:
    values = [0, b"\x00key\xff" * 9, 4096, 512, None, True, "text"]
    assert from_text(to_text(values)) == values


@pytest.mark.parametrize(
    ("index", "environ", "chip"),
    [(2, {}, 2), (1, {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"}, 5), (0, {"ASCEND_RT_VISIBLE_DEVICES": "5"}, 5)],
)
def test_a_place_is_the_physical_device(index: int, environ: dict[str, str], chip: int) -> None:
    assert place_of(index, environ, "host") == f"host-{chip}"
    assert len(machine()) > 8


@pytest.mark.parametrize(
    "comm", [SimpleNamespace(disabled=True, available=False), SimpleNamespace(disabled=False), SimpleNamespace()]
)
def test_a_communicator_that_does_nothing_is_refused(comm: object) -> None:
    with pytest.raises(SyncError, match="the HCCL communicator is disabled"):
        enabled(comm)


def test_a_communicator_that_works_is_taken() -> None:
    comm = SimpleNamespace(disabled=False, available=True)
    assert enabled(comm) is comm


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


def test_both_ends_of_each_sync_can_be_named() -> None:
    from vime_core.targets import load_target

    for sync in (HcclSync, NpuIpcSync):
        assert callable(load_target(sync.publisher))
        assert isinstance(load_target(sync.receiver), type)
    assert (HcclSync.every_rank_sends, NpuIpcSync.every_rank_sends) == (False, True)
