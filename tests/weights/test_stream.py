"""Buckets, digests, deltas and packets on CPU tensors; the whole stream between threads and between processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from vime_core.api.errors import DeadlineError, SyncError
from vime_core.weights.gloo_link import RendezvousStore
from vime_core.weights.manifest import Manifest
from vime_core.weights.stream import delta
from vime_core.weights.stream.bucket import Bucket, Packer, entries_of
from vime_core.weights.stream.channel import within
from vime_core.weights.stream.checksum import BLOCK, Digest, sums
from vime_core.weights.stream.gloo import GlooChannel
from vime_core.weights.stream.receiver import StreamReceiver
from vime_core.weights.stream.sender import StreamPublisher
from vime_core.weights.stream.source import ReceivedBuckets

Named = dict[str, torch.Tensor]


def tensors(seed: int = 0) -> Named:
    """Every element size, odd shapes, a transposed one, an empty one, one larger than a bucket."""
    random = torch.Generator().manual_seed(seed)
    return {
        "brain": torch.randn(129, generator=random).bfloat16(),
        "odd": torch.randn(3, 5, 7, generator=random),
        "turned": torch.randn(8, 6, generator=random).half().T,
        "flags": torch.rand(13, generator=random) < 0.5,
        "scalar": torch.tensor(float(seed)),
        "empty": torch.empty(0, 4),
        "long": torch.randint(-9, 9, (5,), generator=random),
        "big": torch.randn(3000, generator=random).bfloat16(),
        "after": torch.randn(40, generator=random).bfloat16(),
    }


def copies(named: Named, size: int = 1024) -> list[Bucket]:
    """Buckets that outlive the packer's next one."""
    return [Bucket(b.entries, b.flat.clone(), b.width) for b in Packer(size).pack(named.items())]


def same(found: Named, wanted: Named) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == tensor.dtype and found[name].shape == tensor.shape and torch.equal(found[name], tensor)
        for name, tensor in wanted.items()
    )


# buckets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 256, 1000, 1 << 20])
def test_what_is_packed_is_unpacked(size: int) -> None:
    wanted = tensors()
    buckets = copies(wanted, size)
    assert same({name: tensor for bucket in buckets for name, tensor in bucket.tensors()}, wanted)
    for bucket in buckets:
        assert {tensor.element_size() for _, tensor in bucket.tensors()} == {bucket.width}
        assert all(entry.offset % 64 == 0 for entry in bucket.entries)
        assert bucket.flat.numel() <= max(-(-size // 64) * 64, 6016)
        assert len(bucket.entries) == 1 or bucket.flat.numel() <= -(-size // 64) * 64
        assert entries_of(bucket.table(), bucket.flat.numel()) == (bucket.entries, bucket.width)


def test_equal_tensors_give_equal_bytes_whatever_lay_there_before() -> None:
    packer = Packer(512)
    ones = {"a": torch.ones(3, dtype=torch.float16), "b": torch.ones(5, dtype=torch.float16)}
    first = [bucket.flat.clone() for bucket in packer.pack(ones.items())]
    list(packer.pack({"c": torch.full((200,), 7.0, dtype=torch.float16)}.items()))
    again = [bucket.flat.clone() for bucket in packer.pack(ones.items())]
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize(
    "table",
    [
        b"no json",
        b"[]",
        b'{"width":2}',
        b'{"width":2,"names":["a"],"dtypes":["float16"],"shapes":[[64]],"offsets":[0]}',
    ],
)
def test_a_table_that_does_not_fit_is_refused(table: bytes) -> None:
    with pytest.raises(SyncError, match="a bucket's table"):
        entries_of(table, 64)


# digests -----------------------------------------------------------------------------------------------------


def test_a_digest_sees_a_bit_a_swap_and_a_name() -> None:
    flat = torch.arange(4096, dtype=torch.int32).view(torch.uint8).clone()

    def digest(table: bytes, data: torch.Tensor) -> str:
        state = Digest()
        state.update(table, data)
        return state.hexdigest()

    flipped, swapped = flat.clone(), flat.clone()
    flipped[1001] ^= 4
    swapped[:64], swapped[64:128] = flat[64:128], flat[:64]
    found = {
        digest(b"t", flat),
        digest(b"u", flat),
        digest(b"t", flipped),
        digest(b"t", swapped),
        digest(b"t", flat[:-4]),
    }
    assert len(found) == 5
    assert digest(b"t", flat.clone()) == digest(b"t", flat)


def test_sums_neither_round_nor_wrap() -> None:
    """Against Python's integers, at the extremes and over more than one block."""
    worst = torch.full((BLOCK + 3,), -(2**31), dtype=torch.int32)
    (first, first_weighted), (rest, _) = sums(worst.view(torch.uint8))
    assert first == -(2**31) * BLOCK
    assert rest == -(2**31) * 3
    whole, left = divmod(BLOCK, 251)
    assert first_weighted == -(2**31) * (whole * (251 * 252 // 2) + left * (left + 1) // 2)
    assert sums(torch.empty(0, dtype=torch.uint8)) == [(0, 0)]


# deltas ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("changed", [0, 1, 7])
def test_a_delta_leads_from_old_to_new(width: int, changed: int) -> None:
    random = torch.Generator().manual_seed(width)
    old = torch.randint(0, 256, (64 * 32,), generator=random, dtype=torch.uint8)
    new = old.clone()
    for place in range(changed):
        new[place * 8 * 11] ^= 0x5A
    found = delta.encode(old, new, width)
    assert found is not None
    flat, count = found
    assert count == changed
    assert torch.equal(delta.apply(old, flat, count, width), new)


def test_bits_are_compared_and_not_numbers() -> None:
    old = torch.tensor([float("nan"), 0.0, 1.0] + [2.0] * 61)
    new = torch.tensor([float("nan"), -0.0, 1.0] + [2.0] * 61)
    found = delta.encode(old.view(torch.uint8), new.view(torch.uint8), 4)
    assert found is not None
    assert found[1] == 1
    back = delta.apply(old.view(torch.uint8), found[0], 1, 4).view(torch.float32)
    assert torch.signbit(back[1])


def test_where_most_changed_all_values_are_sent() -> None:
    old = torch.zeros(6400, dtype=torch.uint8)
    new = old.clone()
    new[::2] = 1
    assert delta.encode(old, new, 2) is None


@pytest.mark.parametrize(("places", "count"), [([99], 1), ([-1], 1), ([0], 40)])
def test_a_delta_of_something_else_is_refused(places: list[int], count: int) -> None:
    flat = torch.zeros(128, dtype=torch.uint8)
    flat[:4].view(torch.int32)[:] = torch.tensor(places, dtype=torch.int32)
    with pytest.raises(SyncError, match="a delta"):
        delta.apply(torch.zeros(64, dtype=torch.uint8), flat, count, 2)


# deadlines ---------------------------------------------------------------------------------------------------


def test_what_does_not_return_is_left_behind() -> None:
    never = threading.Event()
    with pytest.raises(DeadlineError, match="waiting for nothing: nothing after"):
        within(0.05, "waiting for nothing", never.wait)
    assert within(5.0, "adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        within(5.0, "dividing", lambda: 1 / 0)
    never.set()


# the stream, between threads that each have an end of the channel -------------------------------------------------


class Ends:
    """A sender and receivers at one meeting point; channels are real gloo groups."""

    def __init__(self, receivers: int = 2, bucket: int = 1024, **sender: Any) -> None:
        self.point = RendezvousStore("127.0.0.1")
        self.point.open()
        self.made: list[int] = []
        self.sender = StreamPublisher("stream", self._connect, bucket, **sender)
        self.receivers = [StreamReceiver(self._connect) for _ in range(receivers)]
        self.group = "first"
        self.version_of_sender: int | None = None

    def _connect(self, terms: Any, rank: int) -> GlooChannel:
        self.made.append(rank)
        return GlooChannel(terms, rank)

    def terms(self) -> dict[str, Any]:
        world = 1 + len(self.receivers)
        place = {"host": self.point.host, "port": self.point.port}
        return {**place, "group": self.group, "world": world, "bucket": 1 << 20, "timeout": 10.0}

    def push(self, named: Any, version: int, base: int | None = None) -> tuple[Any, list[Any]]:
        """(manifest or error of the sender, what each receiver has or raised)."""
        results: list[Any] = [None] * len(self.receivers)
        announced = Manifest(version, "stream", "", 0, (), self.terms())

        def take(number: int) -> None:
            results[number] = attempt(lambda: self.receivers[number](announced, number + 1))

        threads = [threading.Thread(target=take, args=(number,)) for number in range(len(self.receivers))]
        for thread in threads:
            thread.start()
        self.sender.open({**self.terms(), "base": base})
        sent = attempt(lambda: self.sender.publish(named, self.version_of_sender or version))
        for thread in threads:
            thread.join(30)
        return sent, results


def attempt(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


@contextmanager
def ends(**more: Any) -> Iterator[Ends]:
    made = Ends(**more)
    try:
        yield made
    finally:
        made.sender.close()
        for receiver in made.receivers:
            receiver.close()
        made.point.close()


def held(source: ReceivedBuckets) -> Named:
    return {name: tensor.clone() for name, tensor in source.tensors()}


def test_every_receiver_has_every_bit_and_the_senders_digest() -> None:
    with ends() as both:
        for version in (1, 2):
            wanted = tensors(version)
            sent, got = both.push(wanted.items(), version)
            assert sent.names == len(wanted)
            assert sent.nbytes == sum(t.numel() * t.element_size() for t in wanted.values())
            for source in got:
                assert same(held(source), wanted)
                assert source.digest() == source.manifest.digest == sent.digest
                assert source.manifest.tensors == sent.tensors
                assert source.intact()


def test_one_channel_serves_the_whole_run() -> None:
    with ends() as both:
        for version in range(5):
            both.push(tensors(version).items(), version)
        assert sorted(both.made) == [0, 1, 2]


def test_a_version_that_is_kept_is_not_touched_by_the_next() -> None:
    with ends(receivers=1) as both:
        first = both.push(tensors(1).items(), 1)[1][0]
        both.push(tensors(2).items(), 2)
        assert same(held(first), tensors(1))
        assert first.intact()


def test_a_byte_that_changed_on_the_way_is_seen() -> None:
    with ends(fault=2) as both:
        assert all(source.intact() for source in both.push(tensors(1).items(), 1)[1])
        sent, got = both.push(tensors(2).items(), 2)
        for source in got:
            assert source.manifest.digest == sent.digest
            assert source.digest() != sent.digest
        assert all(source.intact() for source in both.push(tensors(3).items(), 3)[1])


def test_a_sender_that_fails_half_way_tells_the_others_at_once() -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield from list(tensors().items())[:7]
        raise RuntimeError("the export broke")

    with ends() as both:
        sent, got = both.push(broken(), 1)
        assert isinstance(sent, RuntimeError)
        assert [str(error) for error in got] == ["the sender failed: RuntimeError: the export broke"] * 2
        assert same(held(both.push(tensors(1).items(), 2)[1][0]), tensors(1))


def test_a_receiver_of_another_version_refuses() -> None:
    with ends(receivers=1) as both:
        both.version_of_sender = 8
        _, (error,) = both.push({"w": torch.ones(3)}.items(), 7)
        assert str(error) == "the sender is at weights version 8, version 7 was announced"


def test_nobody_to_meet_is_an_error_and_not_a_wait() -> None:
    sender = StreamPublisher("stream", GlooChannel, 1024)
    with pytest.raises(SyncError, match="has not said where to meet"):
        sender.publish(tensors().items(), 1)


# deltas over the stream ----------------------------------------------------------------------------------------


def test_a_delta_carries_what_changed_and_arrives_as_the_whole() -> None:
    old = {"w": torch.randn(4000).bfloat16(), "b": torch.randn(100)}
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["w"][::50] += 1
    with ends(bucket=1 << 14, deltas=True) as both:
        both.push(old.items(), 1)
        channel: Any = both.sender._channel
        before = channel.carried = 0
        plain = channel.broadcast

        def broadcast(flat: torch.Tensor) -> None:
            channel.carried += flat.numel()
            plain(flat)

        channel.broadcast = broadcast
        sent, got = both.push(new.items(), 2, base=1)
        assert before < channel.carried < 3000 < sent.nbytes
        for source in got:
            assert same(held(source), new)
            assert source.digest() == sent.digest


def test_without_a_common_base_everything_is_sent() -> None:
    named = {"w": torch.randn(500)}
    with ends(deltas=True, bucket=1 << 14) as both:
        both.push(named.items(), 1)
        sent, got = both.push(named.items(), 2, base=None)
        assert all(same(held(source), named) for source in got)
        # a worker that was restarted has no version 2: it says so, and the others say nothing wrong
        both.receivers[1]._last = None
        sent, (first, second) = both.push(named.items(), 3, base=2)
        assert same(held(first), named)
        assert str(second) == "the sender sends changes of version 2, this worker has nothing"
        assert isinstance(sent, Manifest)


# between processes -----------------------------------------------------------------------------------------------

RECEIVING = """
import json, sys, torch
from vime_core.weights.stream.gloo import GlooReceiver
from vime_core.weights.manifest import Manifest
terms, rank = json.loads(sys.argv[1]), int(sys.argv[2])
receive = GlooReceiver()
for version in (1, 2, 3):
    source = receive(Manifest(version, "stream", "", 0, (), terms), rank)
    total = sum(float(t.double().sum()) for _, t in source.tensors())
    print(json.dumps([version, source.digest(), source.manifest.names, round(total, 6)]), flush=True)
"""


def test_the_same_stream_between_processes() -> None:
    import json

    point = RendezvousStore("127.0.0.1")
    point.open()
    terms = {"host": point.host, "port": point.port, "group": "g", "world": 3, "bucket": 4096, "timeout": 60.0}
    command = [sys.executable, "-c", RECEIVING, json.dumps(terms)]
    workers = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in (1, 2)
    ]
    sender = StreamPublisher("stream", GlooChannel, 4096, deltas=True)
    wanted = []
    try:
        for version in (1, 2, 3):
            named = {f"t{i}": torch.full((257, 3), float(i + (i == version))) for i in range(20)}
            sender.open({**terms, "base": version - 1 or None})
            sent = sender.publish(named.items(), version)
            total = sum(float(tensor.double().sum()) for tensor in named.values())
            wanted.append([version, sent.digest, 20, round(total, 6)])
        for worker in workers:
            out, error = worker.communicate(timeout=60)
            assert [json.loads(line) for line in out.splitlines()] == wanted, error[-2000:]
    finally:
        for worker in workers:
            worker.kill()
        sender.close()
        point.close()
