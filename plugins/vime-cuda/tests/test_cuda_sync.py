"""Both carriers as far as they need no GPU: what is chosen, what travels, and what is refused."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vime_cuda.config import CudaOptions
from vime_cuda.sync import ipc, nccl
from vime_cuda.sync.publisher import publisher_of
from vime_testing import WeightSyncSuite

from tests.support.threads import in_threads
from tests.support.weights import received
from vime_core import Config, VimeError
from vime_core.api.errors import SyncError
from vime_core.api.weight_sync import Topology
from vime_core.weights.channel import Rendezvous
from vime_core.weights.rendezvous import RendezvousStore
from vime_core.weights.sender import StreamPublisher
from vime_core.weights.transports.communicator import CommunicatorChannel
from vime_core.weights.transports.device_memory import from_text, to_text
from vime_core.weights.transports.gloo import GlooChannel
from vime_core.weights.transports.host import HostReceiver

HAS_GPU = torch.cuda.is_available()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_GPU, reason="no GPU: CUDA IPC is between two processes on one")
class TestCudaIpc(WeightSyncSuite):
    """One engine: it and the trainer are on the first GPU. NCCL has no such test, since it joins no two processes on
    one GPU; ``benchmarks/cuda_check.py`` runs it on two."""

    plugin = "cuda"
    target = "cuda/cuda_ipc"
    engines = 1


@pytest.fixture
def point() -> Iterator[RendezvousStore]:
    made = RendezvousStore("127.0.0.1")
    made.open()
    yield made
    made.close()


def terms(point: RendezvousStore, world: int = 2) -> dict[str, Any]:
    return {
        "kind": "gloo",
        "host": point.host,
        "port": point.port,
        "group": "g",
        "world": world,
        "bucket": 1024,
        "timeout": 30.0,
    }


# which one -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "colocated", "external", "chosen"),
    [
        ("cuda", False, False, "cuda/nccl"),
        ("cuda", True, False, "cuda/cuda_ipc"),
        ("cuda", False, True, "core/shared_memory"),
        ("cpu", True, False, "core/shared_memory"),
    ],
)
def test_the_sync_follows_device_and_topology(vime_plugins, device, colocated, external, chosen) -> None:
    topology = Topology(device, 8, 4, 1, colocated, external)
    assert vime_plugins("cuda").choose_weight_sync(topology) == chosen


def test_both_ends_of_each_sync_can_be_named_and_made() -> None:
    from vime_core.plugin.targets import load_target

    for sync in (nccl.NcclSync, ipc.CudaIpcSync):
        assert isinstance(load_target(sync.publisher)(Config()), StreamPublisher)
        assert callable(load_target(sync.receiver)())
    assert (nccl.NcclSync.every_rank_sends, ipc.CudaIpcSync.every_rank_sends) == (False, True)


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU here")
def test_without_a_gpu_each_end_says_what_is_missing(point) -> None:
    for connect in (lambda: nccl.NcclChannel(terms(point), 0), lambda: ipc.receiving(terms(point), 1)):
        with pytest.raises(VimeError, match="torch finds no CUDA device"):
            connect()


# the publisher, over gloo --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [False, True])
def test_the_plugins_publisher_sends_what_a_receiver_checks(point, delta: bool) -> None:
    """Real bytes between the two ends, by the configuration's bucket size and this plugin's option."""
    config = Config(plugins={"cuda": CudaOptions(delta=delta)}).replace("sync", update_weight_buffer_size=4096)
    sender, receiver = publisher_of(config, GlooChannel), HostReceiver()
    agreed, named = terms(point), {"w": torch.randn(3000).bfloat16(), "b": torch.arange(7.0)}
    for version in (1, 2):
        named["w"][version] += 1
        sender.open({**agreed, "base": version - 1 or None})
        sent, (manifest, got) = in_threads(
            lambda: sender.publish(named.items(), version),  # noqa: B023
            lambda: received(receiver, version, agreed, 1),  # noqa: B023
        )
        assert manifest == sent
        assert all(torch.equal(got[name], tensor) for name, tensor in named.items())
    assert bool(sender._former) is delta
    sender.close()
    receiver.close()


# NCCL: vLLM's own endpoint -------------------------------------------------------------------------------------------


class WithoutDevice(nccl.NcclChannel):
    """The channel where torch.cuda would be, on a machine without: everything else is vLLM's own."""

    def __init__(self, agreed: Rendezvous, rank: int) -> None:
        functions = {"current_device": lambda: 0, "device": lambda _: contextlib.nullcontext()}
        CommunicatorChannel.__init__(self, agreed, rank, SimpleNamespace(**functions), "cpu")


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU here")
def test_vllms_endpoint_meets_and_a_communicator_without_nccl_is_refused(point) -> None:
    """Both ends find each other through vLLM's real rendezvous; without libnccl its communicator disables itself."""
    found = in_threads(lambda: WithoutDevice(terms(point), 0), lambda: WithoutDevice(terms(point), 1))
    for error in found:
        assert isinstance(error, SyncError), error
        assert str(error).startswith("the NCCL communicator is disabled")
        assert "VLLM_NCCL_SO_PATH" in str(error)


# CUDA IPC: what a handle is ------------------------------------------------------------------------------------------


def reduced(index: int = 3) -> tuple[Any, ...]:
    """What torch reduces a flat tensor of 4096 bytes on device ``index`` to, with a handle made up."""
    kind = torch.storage.TypedStorage
    here = (torch.Tensor, torch.Size([4096]), (1,), 512, kind, torch.uint8, index)
    return (*here, b"\x0fhandle\xff" * 8, 8192, 1024, False, b"/ref", 7, b"event\x00", True)


def test_a_handle_crosses_as_text_and_is_whole_again_on_another_index() -> None:
    text = to_text(ipc.plain(reduced(3), 4096))
    json.loads(text)
    assert tuple(ipc.rebuilt(from_text(text), 0)) == reduced(0)


def test_the_places_are_those_of_the_torch_that_is_here() -> None:
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    names = list(inspect.signature(rebuild_cuda_tensor).parameters)
    assert len(names) == len(reduced())
    places = {names[ipc._OFFSET], names[ipc._DEVICE], names[ipc._HANDLE]}
    assert places == {"tensor_offset", "storage_device", "storage_handle"}
