"""Carriers beside gloo: shared memory of two ends on one device, and what is refused before anything is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.threads import in_threads
from tests.support.weights import received
from vime_core.api.errors import SyncError
from vime_core.weights.receiver import StreamReceiver
from vime_core.weights.rendezvous import RendezvousStore
from vime_core.weights.sender import StreamPublisher
from vime_core.weights.transports.communicator import CommunicatorChannel, enabled
from vime_core.weights.transports.device_memory import SharedChannel, from_text, machine, to_text
from vime_core.weights.transports.gloo import GlooChannel


class FileExporter:
    """Memory that two ends share through a file: what a device's handles do, on the CPU."""

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
def point() -> Iterator[RendezvousStore]:
    made = RendezvousStore("127.0.0.1")
    made.open()
    yield made
    made.close()


def terms(point: RendezvousStore, timeout: float = 20.0) -> dict[str, Any]:
    place = {"kind": "shared", "host": point.host, "port": point.port}
    return {**place, "group": "g", "world": 3, "bucket": 512, "timeout": timeout}


def test_each_trainer_rank_serves_the_worker_on_its_own_device(point, tmp_path) -> None:
    """Two devices: pieces smaller than a bucket, buckets larger than the shared buffer, two versions."""

    def channel(sends: bool, chip: int) -> Callable[[Any, int], SharedChannel]:
        return lambda agreed, rank: SharedChannel(agreed, rank, FileExporter(tmp_path, chip), sends)

    senders = [StreamPublisher(channel(True, chip), 2048) for chip in (4, 5)]
    receivers = [StreamReceiver(channel(False, chip)) for chip in (4, 5)]
    agreed = terms(point)
    for version in (1, 2):
        wanted = [{"w": torch.full((700,), 10.0 * chip + version), "n": torch.arange(chip + 3)} for chip in (4, 5)]
        for sender in senders:
            sender.open(agreed)
        sent0, sent1, got0, got1 = in_threads(
            lambda: senders[0].publish(wanted[0].items(), version),  # noqa: B023
            lambda: senders[1].publish(wanted[1].items(), version),  # noqa: B023
            lambda: received(receivers[0], version, agreed, 1),  # noqa: B023
            lambda: received(receivers[1], version, agreed, 2),  # noqa: B023
        )
        for sent, got, weights in ((sent0, got0, wanted[0]), (sent1, got1, wanted[1])):
            assert got[0] == sent
            assert all(torch.equal(tensor, weights[name]) for name, tensor in got[1].items())
    for end in (*senders, *receivers):
        end.close()


def test_a_device_without_its_other_end_is_named(point, tmp_path) -> None:
    agreed = terms(point, timeout=0.3)
    with pytest.raises(SyncError, match=r"IPC: a trainer rank on the same device .here-7. did not answer in time"):
        SharedChannel(agreed, 1, FileExporter(tmp_path, 7), sends=False)
    lonely = SharedChannel(agreed, 0, FileExporter(tmp_path, 8), sends=True)
    with pytest.raises(SyncError, match="IPC: an engine worker on the same device"):
        lonely.broadcast(torch.zeros(64, dtype=torch.uint8))
    assert not lonely.alive
    with pytest.raises(SyncError, match="closed"):
        lonely.broadcast(torch.zeros(64, dtype=torch.uint8))


def test_ends_that_are_out_of_step_notice(point, tmp_path) -> None:
    agreed = terms(point, timeout=2.0)
    sender = SharedChannel(agreed, 0, FileExporter(tmp_path, 1), sends=True)
    receiver = SharedChannel(agreed, 1, FileExporter(tmp_path, 1), sends=False)
    _, error = in_threads(
        lambda: sender.broadcast(torch.zeros(128, dtype=torch.uint8)),
        lambda: receiver.broadcast(torch.zeros(64, dtype=torch.uint8)),
    )
    assert "out of step" in str(error)
    assert not receiver.alive


def test_a_handle_is_plain_values() -> None:
    values = [0, b"\x00key\xff" * 9, 4096, 512, None, True, "text"]
    assert from_text(to_text(values)) == values


def test_a_machine_has_one_name() -> None:
    assert machine() == machine()
    assert len(machine()) > 8


@pytest.mark.parametrize(
    "comm", [SimpleNamespace(disabled=True, available=False), SimpleNamespace(disabled=False), SimpleNamespace()]
)
def test_a_communicator_that_does_nothing_is_refused(comm: object) -> None:
    with pytest.raises(SyncError, match=r"the XCCL communicator is disabled: .*; install it"):
        enabled(comm, "XCCL", "install it")


def test_a_communicator_that_works_is_taken() -> None:
    comm = SimpleNamespace(disabled=False, available=True)
    assert enabled(comm, "XCCL", "install it") is comm


# a communicator, between threads: everything but the library itself ---------------------------------------------------


class GlooCommunicator:
    """What vLLM's communicators offer, over gloo."""

    disabled, available = False, True

    def __init__(self, host: str, port: int, rank: int, world: int) -> None:
        self._point: Any = None
        if rank == 0:
            self._point = torch.distributed.TCPStore(host, port, is_master=True, wait_for_workers=False)
        place = {"host": host, "port": port, "group": "own", "world": world, "bucket": 1 << 20, "timeout": 20.0}
        self.link = GlooChannel(place, rank)

    def broadcast(self, flat: torch.Tensor, src: int) -> None:
        assert src == 0
        self.link.broadcast(flat)


class GlooBacked(CommunicatorChannel):
    library, remedy = "XCCL", "install it"

    def __init__(self, agreed: Any, rank: int) -> None:
        self.destroyed = 0
        super().__init__(agreed, rank, SimpleNamespace(**CPU), "cpu")

    def join(self, host: str, port: int, rank: int, world: int) -> Any:
        return GlooCommunicator(host, port, rank, world)

    def destroy(self, comm: Any) -> None:
        self.destroyed += 1


#: what the channel asks of a device's torch module
CPU = {"current_device": lambda: 0, "synchronize": lambda: None, "device": lambda _: contextlib.nullcontext()}


def test_a_communicator_carries_versions_for_the_whole_run(point) -> None:
    agreed = terms(point)
    sender = StreamPublisher(GlooBacked, 2048)
    receivers = [StreamReceiver(GlooBacked) for _ in range(2)]
    for version in (1, 2):
        wanted = {"w": torch.full((700,), float(version)), "n": torch.arange(5)}
        sender.open(agreed)
        sent, *got = in_threads(
            lambda: sender.publish(wanted.items(), version),  # noqa: B023
            *(lambda number=number: received(receivers[number], version, agreed, number + 1) for number in range(2)),  # noqa: B023
        )
        for manifest, found in got:
            assert manifest == sent
            assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.items())
    channel: Any = sender._channel
    for end in (sender, *receivers):
        end.close()
    assert channel.destroyed == 1
    with pytest.raises(SyncError, match="the XCCL channel is closed"):
        channel.broadcast(torch.zeros(4, dtype=torch.uint8))


def test_a_broken_broadcast_closes_the_channel_for_ever(point) -> None:
    agreed = terms(point) | {"world": 2}
    ends = in_threads(lambda: GlooBacked(agreed, 0), lambda: GlooBacked(agreed, 1))
    ends[0]._comm.broadcast = None
    with pytest.raises(SyncError, match="XCCL: TypeError"):
        ends[0].broadcast(torch.zeros(4, dtype=torch.uint8))
    assert not ends[0].alive
