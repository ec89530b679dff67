"""What a publisher writes is what a receiver maps, described by a manifest that survives the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
import xxhash

from vime_core.api.errors import ConfigError, SyncError
from vime_core.config.sections import Config
from vime_core.inference.vllm.layout import layout_faults
from vime_core.weights.manifest import ALIGNMENT, Manifest, TensorEntry
from vime_core.weights.publisher import Publisher, fault_sync
from vime_core.weights.sources import ReceivedBytes


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher.create(Config())
    yield publisher
    publisher.close()


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "odd": torch.randn(3, 5, 7),
        "half": torch.randn(1000, 1001).bfloat16(),
        "turned": torch.randn(40, 30).T,
        "scalar": torch.tensor(3.5),
        "flags": torch.tensor([True, False, True]),
        "empty": torch.empty(0, 4),
    }


def received(manifest: Manifest) -> ReceivedBytes:
    """As a receiver in another process gets it: through JSON and the mapped path."""
    return ReceivedBytes.of(Manifest.from_wire(json.loads(json.dumps(manifest.to_wire()))), rank=1)


def equal(source: ReceivedBytes, wanted: dict[str, torch.Tensor]) -> bool:
    got = dict(source.tensors())
    same = (got[name].dtype == t.dtype and torch.equal(got[name], t) for name, t in wanted.items())
    return list(got) == list(wanted) and all(same)


def test_bytes_and_digest_arrive_as_sent(publisher: Publisher) -> None:
    sent = tensors()
    manifest = publisher.publish(iter(sent.items()), 1)
    source = received(manifest)
    assert equal(source, sent)
    everything = b"".join(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in sent.values())
    assert source.digest() == manifest.digest == xxhash.xxh3_128(everything).hexdigest()
    assert manifest.nbytes == len(everything)
    assert manifest.names == len(sent)
    assert all(entry.offset % ALIGNMENT == 0 for entry in manifest.tensors)
    assert layout_faults(manifest, {}, tied=False) == []


def test_what_was_published_can_give_its_memory_up(publisher: Publisher) -> None:
    """A tensor that numpy has shared memory with cannot."""
    sent = tensors()
    manifest = publisher.publish(iter(sent.items()), 1)
    for tensor in sent.values():
        tensor.untyped_storage().resize_(0)
    assert equal(received(manifest), tensors())


def test_the_former_version_stays_whole_while_the_next_is_written(publisher: Publisher) -> None:
    first = received(publisher.publish(tensors(1).items(), 1))
    second = received(publisher.publish(tensors(2).items(), 2))
    assert first.intact()
    assert second.intact()
    again = received(publisher.publish(tensors(3).items(), 2))  # a repeated version replaces its own bytes
    assert first.intact()
    assert not second.intact()
    assert equal(again, tensors(3))
    publisher.publish(tensors(4).items(), 3)
    assert again.intact()
    assert not first.intact()


def test_a_smaller_model_in_a_used_buffer(publisher: Publisher) -> None:
    publisher.publish(tensors(1).items(), 1)
    publisher.publish({"one": torch.ones(3)}.items(), 1)
    manifest = publisher.publish({"one": torch.ones(3)}.items(), 1)
    assert manifest.size == 12
    assert equal(received(manifest), {"one": torch.ones(3)})


def test_the_fault_hook_changes_the_bytes_and_not_the_digest() -> None:
    publisher = Publisher.create(Config().replace("sync", sync_fault="corrupt:2"))
    assert received(publisher.publish(tensors().items(), 1)).intact()
    faulty = publisher.publish(tensors().items(), 2)
    assert not received(faulty).intact()
    assert not equal(received(faulty), tensors())
    assert received(publisher.publish(tensors().items(), 3)).intact()
    publisher.close()


@pytest.mark.parametrize("fault", ["corrupt", "corrupt:0", "corrupt:-1", "drop:1", "corrupt:1:2"])
def test_an_unknown_fault_is_named(fault: str) -> None:
    with pytest.raises(ConfigError, match="--sync-fault"):
        fault_sync(fault)


def test_a_receiver_cannot_reach_the_senders_bytes(publisher: Publisher) -> None:
    manifest = publisher.publish(tensors().items(), 1)
    received(manifest).flat.fill_(0)
    assert received(manifest).intact()


def test_nothing_is_left_after_close(publisher: Publisher) -> None:
    manifest = publisher.publish(tensors().items(), 1)
    mapped = received(manifest)
    publisher.close()
    publisher.close()
    assert mapped.intact()  # whoever has it mapped keeps it
    with pytest.raises(OSError, match=r"No such file|fd"):
        received(manifest)


def test_only_the_latest_version_is_broadcast(publisher: Publisher) -> None:
    publisher.publish(tensors().items(), 1)
    with pytest.raises(SyncError, match="version 2"):
        publisher.broadcast(2, 2)


def manifest_of(**shapes: tuple[int, ...]) -> Manifest:
    entries, offset = [], 0
    for name, shape in shapes.items():
        entries.append(TensorEntry(name.replace("__", "."), "float32", shape, offset))
        offset += entries[-1].nbytes
    return Manifest(1, "shared_memory", "", offset, tuple(entries), {})


def test_layout_faults_name_what_is_wrong() -> None:
    expected = {"a": (2,), "b": (3, 4), "lm_head.weight": (2,)}
    good = manifest_of(a=(2,), b=(3, 4), lm_head__weight=(2,))
    assert layout_faults(good, expected, tied=False) == []
    without_head = manifest_of(a=(2,), b=(3, 4))
    assert layout_faults(without_head, expected, tied=True) == []
    assert layout_faults(without_head, expected, tied=False) == ["names missing: lm_head.weight"]
    wrong = manifest_of(a=(2,), b=(4, 3), c=(1,))
    assert layout_faults(wrong, {"a": (2,), "b": (3, 4)}, tied=False) == [
        "names that the model does not have: c",
        "shapes that differ: b [4, 3] for [3, 4]",
    ]


def test_tensors_that_overlap_or_leave_the_buffer_are_faults() -> None:
    one, two = TensorEntry("a", "float32", (4,), 0), TensorEntry("b", "float32", (4,), 8)
    overlapping = Manifest(1, "shared_memory", "", 24, (one, two), {})
    assert layout_faults(overlapping, {}, tied=False) == ["b overlaps the tensor before it"]
    outside = Manifest(1, "shared_memory", "", 8, (one,), {})
    assert layout_faults(outside, {}, tied=False) == ["tensors need 16 bytes, the buffer has 8"]
    twice = Manifest(1, "shared_memory", "", 32, (one, TensorEntry("a", "float32", (4,), 16)), {})
    assert layout_faults(twice, {}, tied=False) == ["names sent twice: a"]


def test_a_manifest_that_contradicts_itself_is_not_read() -> None:
    wire = manifest_of(a=(2,)).to_wire()
    with pytest.raises(ValueError, match="differ in length"):
        Manifest.from_wire({**wire, "offsets": []})
    with pytest.raises(ValueError, match="unknown type"):
        Manifest.from_wire({**wire, "dtypes": ["complex64"]})
