"""The device backend, tensors in device memory, and offload, on the real torch_npu."""

from __future__ import annotations

import emulated
import pytest
import torch
from vime_ascend.backend import AscendBackend
from vime_testing import DeviceSuite

from vime_core.training.offload import Offload
from vime_core.weights import delta
from vime_core.weights.bucket import Packer
from vime_core.weights.checksum import sums


class TestAscend(DeviceSuite):
    target = AscendBackend


def test_this_is_the_real_torch_npu() -> None:
    import torch_npu

    assert torch_npu.__version__.startswith("2.13.0")
    assert torch.npu.get_device_name() == "Ascend910B1"
    assert torch.empty(3, device="npu").device == torch.device("npu", 0)
    assert emulated.OPERATORS


def test_its_random_state_is_its_own() -> None:
    assert AscendBackend().get_rng_state().numel() == 16


def test_buckets_and_sums_are_the_same_on_both_devices() -> None:
    random = torch.Generator().manual_seed(0)
    named = {
        "brain": torch.randn(129, generator=random).bfloat16(),
        "turned": torch.randn(8, 6, generator=random).half().T,
        "flags": torch.rand(13, generator=random) < 0.5,
        "long": torch.randn(3000, generator=random),
    }
    there = Packer(1024).pack((name, tensor.npu()) for name, tensor in named.items())
    here = Packer(1024).pack(named.items())
    for mine, theirs in zip(here, there, strict=True):
        assert theirs.flat.device.type == "npu"
        assert torch.equal(theirs.flat.cpu(), mine.flat)
        assert sums(theirs.flat) == sums(mine.flat)
        assert all(torch.equal(a.cpu(), b) for (_, a), (_, b) in zip(theirs.tensors(), mine.tensors()))


def test_a_delta_is_made_on_the_device_and_applied_on_the_host() -> None:
    old = torch.randn(4096).bfloat16()
    new = old.clone()
    new[::100] += 1
    found = delta.encode(old.npu().view(torch.uint8), new.npu().view(torch.uint8), 2)
    assert found is not None
    flat, count = found
    assert flat.device.type == "npu"
    assert torch.equal(delta.apply(old.view(torch.uint8), flat.cpu(), count, 2), new.view(torch.uint8))


def test_memory_goes_back_to_the_device_and_comes_again() -> None:
    device = AscendBackend()
    buffer = torch.arange(1 << 22, dtype=torch.float32, device="npu")
    view = buffer[5:9].view(2, 2)
    device.empty_cache()
    before = torch.npu.mem_get_info()[0]
    offload = Offload(device.empty_cache, pin=True)
    assert offload.out([buffer, view]) == 4 << 22
    assert torch.npu.memory_allocated() < 4 << 20
    assert torch.npu.mem_get_info()[0] - before >= 4 << 22
    offload.back()
    assert view.cpu().tolist() == [[5.0, 6.0], [7.0, 8.0]]
    assert float(buffer.cpu().double().sum()) == (1 << 22) * ((1 << 22) - 1) / 2


def test_an_operator_that_is_not_there_fails() -> None:
    with pytest.raises(RuntimeError):
        torch.ops.npu.npu_rms_norm(torch.ones(2, 8, device="npu"), torch.ones(8, device="npu"))


def test_more_memory_than_there_is_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(5 << 30, dtype=torch.uint8, device="npu")
