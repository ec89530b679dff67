"""ProcessGroupHCCL, and weights over vllm-ascend's communicator and over torch_npu's IPC handles, between processes."""

from __future__ import annotations

import json

import emulated
import pytest

from vime_core.weights.rendezvous import RendezvousStore

GROUP = """
import torch.distributed as dist
dist.init_process_group("cpu:gloo,npu:hccl")
mine = torch.tensor([rank + 1.0, 5.0], device="npu")
dist.all_reduce(mine)
gathered = torch.zeros(2, device="npu")
dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)], device="npu"))
part = torch.zeros(2, device="npu"); dist.reduce_scatter_tensor(part, torch.arange(4.0, device="npu"))
chosen = torch.tensor([rank + 7], device="npu"); dist.broadcast(chosen, 1)
host = torch.tensor([rank + 1.0]); dist.all_reduce(host)
dist.barrier()
print(json.dumps([t.cpu().tolist() for t in (mine, gathered, part, chosen, host)]))
dist.destroy_process_group()
"""

DISAGREEING = """
import torch.distributed as dist
dist.init_process_group("hccl")
dist.all_reduce(torch.ones(1, device="npu"))
try:
    dist.all_reduce(torch.ones(2 + rank, device="npu")); torch.npu.synchronize(); print(json.dumps("nothing"))
except RuntimeError as error:
    print(json.dumps("refused"))
os._exit(0)
"""

STREAM = """
import torch
from vime_ascend.sync.hccl import HcclChannel
from vime_ascend.sync.ipc import receiving, sending
from vime_core.weights.receiver import StreamReceiver
from vime_core.weights.sender import StreamPublisher
from vime_core.api.errors import SyncError

terms, kind = json.loads(os.environ["TERMS"]), os.environ["KIND"]
here, there = (HcclChannel, HcclChannel) if kind == "hccl" else (sending, receiving)
made = []

def counted(connect):
    def make(*arguments):
        made.append(1)
        return connect(*arguments)
    return make

def weights(version):
    generator = torch.Generator().manual_seed(version)
    return {
        "brain": torch.randn(5000, generator=generator).bfloat16(),
        "odd": torch.randn(33, 3, generator=generator),
        "flags": torch.rand(7, generator=generator) < 0.5,
        "wide": torch.arange(9) + version,
    }

def total(tensors):
    return [round(float(t.double().sum()), 4) for _, t in sorted(tensors)]

rows = []
try:
    if rank == 0:
        end = StreamPublisher(counted(here), 4096, deltas=True)
        for version in (1, 2, 3, 4, 5):
            end.open({**terms, "base": version - 1 or None})
            named = {name: tensor.npu() for name, tensor in weights(version).items()}
            sent = end.publish(named.items(), version)
            rows.append([sent.digest, total(weights(version).items())])
    else:
        end = StreamReceiver(counted(there))
        for version in (1, 2, 3, 4, 5):
            got = end(version, terms, rank, lambda entries, complete: None)
            found = total(got.tensors())
            rows.append([got.manifest.digest, found])
    end.close()
except SyncError as error:
    rows = str(error)
print(json.dumps([rows, len(made)]), flush=True)
os._exit(0)
"""


def terms(point: RendezvousStore, world: int) -> str:
    place = {"kind": "", "host": point.host, "port": point.port}
    return json.dumps({**place, "group": "g", "world": world, "bucket": 4096, "timeout": 60.0})


@pytest.fixture
def point():
    made = RendezvousStore("127.0.0.1")
    made.open()
    yield made
    made.close()


def test_a_group_of_two_does_what_it_should() -> None:
    first, second = emulated.ranks(GROUP, 2)
    assert first[:2] == second[:2] == [[3.0, 10.0], [0.0, 1.0]]
    assert [first[2], second[2]] == [[0.0, 2.0], [4.0, 6.0]]
    assert first[3:] == second[3:] == [[8], [3.0]]


def test_ranks_that_disagree_are_refused() -> None:
    assert emulated.ranks(DISAGREEING, 2) == ["refused", "refused"]


@pytest.mark.parametrize(("kind", "world"), [("hccl", 2), ("hccl", 3), ("npu_ipc", 2)])
def test_five_versions_arrive_over_one_channel(point: RendezvousStore, kind: str, world: int) -> None:
    """Rank 0 sends from device memory, the others receive; digests and sums of all agree."""
    (rows, made), *others = emulated.ranks(STREAM, world, TERMS=terms(point, world), KIND=kind)
    assert made == 1
    assert len({digest for digest, _ in rows}) == 5
    for theirs, channels in others:
        assert theirs == rows
        assert channels == 1


def test_a_library_that_cannot_be_loaded_is_not_taken_for_a_sync(point: RendezvousStore) -> None:
    """vllm-ascend's communicator then disables itself, and would move nothing without a word."""
    found = emulated.ranks(STREAM, 2, TERMS=terms(point, 2), KIND="hccl", HCCL_SO_PATH="/nowhere/libhccl.so")
    for rows, _ in found:
        assert str(rows).startswith("the HCCL communicator is disabled")
