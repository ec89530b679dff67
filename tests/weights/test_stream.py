"""Buckets, digests, deltas and packets on CPU tensors; the whole stream between threads and between processes."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import xxhash

from tests.support.threads import in_threads
from tests.support.weights import received
from vime_core.api.errors import DeadlineError, SyncError
from vime_core.weights import delta
from vime_core.weights.bucket import Bucket, Packer
from vime_core.weights.channel import Channel
from vime_core.weights.checksum import BLOCK, Digest, checksum_of, sums, view_of
from vime_core.weights.layout import ModelLayout
from vime_core.weights.manifest import Manifest
from vime_core.weights.receiver import IncomingWeights, StreamReceiver
from vime_core.weights.rendezvous import RendezvousStore
from vime_core.weights.sender import StreamPublisher
from vime_core.weights.transports.communicator import CallThread
from vime_core.weights.transports.host import connect
from vime_core.weights.transports.shared_memory import SharedFile, map_bytes

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
    return [replace(b, flat=b.flat.clone()) for b in Packer(size).pack(named.items())]


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
        again = Bucket.of_table(bucket.table(), bucket.flat)
        assert replace(again, flat=None) == replace(bucket, flat=None)
        again.verify()


def test_equal_tensors_give_equal_bytes_whatever_lay_there_before() -> None:
    packer = Packer(512)
    ones = {"a": torch.ones(3, dtype=torch.float16), "b": torch.ones(5, dtype=torch.float16)}
    first = [bucket.flat.clone() for bucket in packer.pack(ones.items())]
    list(packer.pack({"c": torch.full((200,), 7.0, dtype=torch.float16)}.items()))
    again = [bucket.flat.clone() for bucket in packer.pack(ones.items())]
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def table(**columns: Any) -> bytes:
    one = {"width": 4, "checksum": "xxh3:0", "names": ["a"], "dtypes": ["float32"], "shapes": [[4]], "offsets": [0]}
    return json.dumps(one | columns).encode()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (b"no json", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"width":2}', "cannot be read"),
        (table(offsets=[]), "cannot be read"),
        (table(dtypes=["complex64"]), "cannot be read .KeyError: 'complex64'"),
        (table(shapes=[[64]]), "tensors need 256 bytes, the bucket has 64"),
        (table(offsets=[-4]), "a overlaps the tensor before it"),
        (
            table(names=["a", "b"], dtypes=["float32"] * 2, shapes=[[4], [4]], offsets=[0, 8]),
            "b overlaps the tensor before it",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(wrong: bytes, says: str) -> None:
    with pytest.raises(SyncError, match=f"a bucket's table .*{says}"):
        Bucket.of_table(wrong, torch.zeros(64, dtype=torch.uint8))


# digests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["xxh3", "sums"])
def test_a_checksum_sees_a_bit_a_swap_and_a_missing_end(method: str) -> None:
    flat = torch.arange(4096, dtype=torch.int32).view(torch.uint8).clone()
    flipped, swapped = flat.clone(), flat.clone()
    flipped[1001] ^= 4
    swapped[:64], swapped[64:128] = flat[64:128], flat[:64]
    assert len({checksum_of(data, method) for data in (flat, flipped, swapped, flat[:-4])}) == 4
    assert checksum_of(flat.clone(), method) == checksum_of(flat, method)


def test_a_digest_sees_a_table_and_where_one_ends() -> None:
    def digest(*tables: bytes) -> str:
        state = Digest()
        for one in tables:
            state.update(one)
        return state.hexdigest()

    assert len({digest(b"t"), digest(b"u"), digest(b"t", b"u"), digest(b"u", b"t"), digest(b"tu")}) == 5
    assert digest(b"t", b"u") == digest(b"t", b"u")


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
        CallThread("stuck").call(0.05, "waiting for nothing", never.wait)
    never.set()


def test_one_thread_makes_all_calls() -> None:
    thread = CallThread("test")
    assert thread.call(5.0, "adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        thread.call(5.0, "dividing", lambda: 1 / 0)
    names = {thread.call(5.0, "naming", lambda: threading.current_thread().name) for _ in range(3)}
    assert names == {"vime-test"}
    thread.close()


# the stream, between threads that each have an end of the channel -------------------------------------------------


class Ends:
    """A sender and receivers at one meeting point; channels are real ones."""

    def __init__(self, kind: str, receivers: int = 2, bucket: int = 1024, **sender: Any) -> None:
        self.kind = kind
        self.point = RendezvousStore("127.0.0.1")
        self.point.open()
        self.made: list[int] = []
        self.sender = StreamPublisher(self._connect, bucket, **sender)
        self.receivers = [StreamReceiver(self._connect) for _ in range(receivers)]
        self.group = "first"
        self.version_of_sender: int | None = None

    def _connect(self, terms: Any, rank: int) -> Channel:
        self.made.append(rank)
        return connect(terms, rank)

    def terms(self) -> dict[str, Any]:
        world = 1 + len(self.receivers)
        place = {"host": self.point.host, "port": self.point.port}
        return {**place, "kind": self.kind, "group": self.group, "world": world, "bucket": 1 << 20, "timeout": 10.0}

    def push(self, named: Any, version: int, base: int | None = None) -> tuple[Any, list[Any]]:
        """(manifest or error of the sender, (manifest, tensors) or error of each receiver)."""
        results: list[Any] = [None] * len(self.receivers)

        def take(number: int) -> None:
            results[number] = attempt(lambda: received(self.receivers[number], version, self.terms(), number + 1))

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


@pytest.fixture(params=["gloo", "shared_memory"])
def kind(request: pytest.FixtureRequest) -> str:
    """The transports that need no device: the protocol is the same over each."""
    return str(request.param)


@pytest.fixture
def ends(kind: str) -> Callable[..., Any]:
    @contextmanager
    def make(**more: Any) -> Iterator[Ends]:
        made = Ends(kind, **more)
        try:
            yield made
        finally:
            made.sender.close()
            for receiver in made.receivers:
                receiver.close()
            made.point.close()

    return make


def test_every_receiver_has_every_bit_and_the_senders_digest(ends: Callable[..., Any]) -> None:
    with ends() as both:
        for version in (1, 2):
            wanted = tensors(version)
            sent, got = both.push(wanted.items(), version)
            assert sent.names == len(wanted)
            assert sent.nbytes == sum(t.numel() * t.element_size() for t in wanted.values())
            for manifest, found in got:
                assert same(found, wanted)
                assert manifest == sent


def test_one_channel_serves_the_whole_run(ends: Callable[..., Any]) -> None:
    with ends() as both:
        for version in range(5):
            both.push(tensors(version).items(), version)
        assert sorted(both.made) == [0, 1, 2]


def test_a_byte_that_changed_on_the_way_is_seen(ends: Callable[..., Any]) -> None:
    with ends(corrupt=2) as both:
        assert all(same(found, tensors(1)) for _, found in both.push(tensors(1).items(), 1)[1])
        sent, errors = both.push(tensors(2).items(), 2)
        assert isinstance(sent, Manifest)
        for error in errors:
            assert str(error).startswith("received bytes have digest ")
            assert str(error).endswith("(the bucket that begins with brain)")
        assert all(same(found, tensors(3)) for _, found in both.push(tensors(3).items(), 3)[1])


def test_nothing_is_given_on_before_it_is_verified(ends: Callable[..., Any], kind: str) -> None:
    """Memory that the sender keeps is verified as a whole; what comes in buckets, bucket by bucket."""
    named = {f"t{i}": torch.full((200,), float(i)) for i in range(4)}  # a bucket each
    given: list[str] = []

    def receive(both: Ends) -> None:
        incoming = both.receivers[0](1, both.terms(), 1, lambda entries, complete: None)
        for name, _ in incoming.tensors():
            given.append(name)

    with ends(receivers=1) as both:
        both.sender.open(both.terms() | {"base": None})
        plain = both.sender._packet

        def corrupt(bucket: Bucket, former: Any, whole: Any) -> Any:
            if bucket.entries[0].name == "t2":
                bucket.flat[7] ^= 1
            return plain(bucket, former, whole)

        both.sender._packet = corrupt
        sent, error = in_threads(lambda: both.sender.publish(named.items(), 1), lambda: receive(both))
        assert isinstance(sent, Manifest)
        assert "the bucket that begins with t2" in str(error)
    assert given == ([] if kind == "shared_memory" else ["t0", "t1"])


def test_a_receiver_holds_one_bucket_or_the_senders_memory(ends: Callable[..., Any], kind: str) -> None:
    """Storage of its own that is alive while it walks through 64 buckets, and after."""
    named = {f"t{i}": torch.full((256,), float(i)) for i in range(64)}
    alive: list[int] = []
    storages: weakref.WeakSet[Any] = weakref.WeakSet()

    def receive(both: Ends, version: int) -> None:
        incoming = both.receivers[0](version, both.terms(), 1, lambda entries, complete: None)
        for _, tensor in incoming.tensors():
            storages.add(tensor.untyped_storage())
            alive.append(len(storages))

    with ends(receivers=1) as both:
        for version in (1, 2):
            both.sender.open(both.terms() | {"base": version - 1 or None})
            sent, error = in_threads(
                lambda: both.sender.publish(named.items(), version),  # noqa: B023
                lambda: receive(both, version),  # noqa: B023
            )
            assert (error, sent.names) == (None, 64)
        gc.collect()
        assert len(storages) == 0
        assert both.receivers[0]._base.buckets == {}
        if kind == "shared_memory":
            # one version, in the sender's memory, whatever is pushed
            assert len(both.sender._channel._file.spans) == 64
        else:
            assert max(alive) <= 2


def test_what_a_model_does_not_have_is_refused_before_it_is_given_on(ends: Callable[..., Any]) -> None:
    """By name, in the bucket that brings it; what is missing shows at the end."""
    given: list[str] = []

    def receive(both: Ends, version: int) -> None:
        layout = ModelLayout({"a": (200,), "b": (200,), "c": (200,)})
        for name, _ in both.receivers[0](version, both.terms(), 1, layout.require).tensors():
            given.append(name)

    with ends(receivers=1) as both:
        for version, named, says in (
            (1, {"a": 200, "b": 3, "c": 200}, r"shapes that differ: b [3] for [200]"),
            (2, {"x": 200, "a": 200}, "names that the model does not have: x"),
            (3, {"a": 200, "c": 200}, "names missing: b"),
        ):
            both.sender.open(both.terms() | {"base": None})
            sent, error = in_threads(
                lambda: both.sender.publish(((n, torch.ones(size)) for n, size in named.items()), version),  # noqa: B023
                lambda: receive(both, version),  # noqa: B023
            )
            assert isinstance(sent, Manifest)
            assert says in str(error)
    assert "b" not in given
    assert "x" not in given


def test_a_worker_that_stops_in_the_middle_lets_the_others_end(ends: Callable[..., Any]) -> None:
    def broken(both: Ends) -> IncomingWeights:
        incoming = both.receivers[0](1, both.terms(), 1, lambda entries, complete: None)
        next(incoming.tensors())
        incoming.drain()
        return incoming

    with ends() as both:
        both.sender.open(both.terms() | {"base": None})
        sent, _, (manifest, found) = in_threads(
            lambda: both.sender.publish(tensors().items(), 1),
            lambda: broken(both),
            lambda: received(both.receivers[1], 1, both.terms(), 2),
        )
        assert manifest == sent
        assert same(found, tensors())
        assert all(same(got, tensors(2)) for _, got in both.push(tensors(2).items(), 2)[1])


def test_an_update_that_nobody_asks_for_ends_the_senders_wait(ends: Callable[..., Any], kind: str) -> None:
    def abandon(both: Ends) -> None:
        both.receivers[0](1, both.terms(), 1, lambda entries, complete: None).abandon()

    with ends(receivers=1) as both:
        both.sender.open(both.terms() | {"base": None})
        sent, error = in_threads(lambda: both.sender.publish(tensors().items(), 1), lambda: abandon(both))
        assert error is None
        assert isinstance(sent, Manifest if kind == "shared_memory" else SyncError)


def test_a_sender_that_fails_half_way_tells_the_others_at_once(ends: Callable[..., Any]) -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield from list(tensors().items())[:7]
        raise RuntimeError("the export broke")

    with ends() as both:
        sent, got = both.push(broken(), 1)
        assert isinstance(sent, RuntimeError)
        assert [str(error) for error in got] == ["the sender failed: RuntimeError: the export broke"] * 2
        assert same(both.push(tensors(1).items(), 2)[1][0][1], tensors(1))


def test_a_receiver_of_another_version_refuses(ends: Callable[..., Any]) -> None:
    with ends(receivers=1) as both:
        both.version_of_sender = 8
        _, (error,) = both.push({"w": torch.ones(3)}.items(), 7)
        assert str(error) == "the sender is at weights version 8, version 7 was announced"


def test_nobody_to_meet_is_an_error_and_not_a_wait() -> None:
    sender = StreamPublisher(connect, 1024)
    with pytest.raises(SyncError, match="has not said where to meet"):
        sender.publish(tensors().items(), 1)


# deltas over the stream ----------------------------------------------------------------------------------------


def test_a_delta_carries_what_changed_and_arrives_as_the_whole(ends: Callable[..., Any]) -> None:
    old = {"w": torch.randn(4000).bfloat16(), "b": torch.randn(100)}
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["w"][::50] += 1
    with ends(bucket=1 << 14, deltas=True) as both:
        both.push(old.items(), 1)
        channel: Any = both.sender._channel
        before = channel.carried = 0
        plain = channel.give

        def give(flat: torch.Tensor) -> None:
            channel.carried += flat.numel()
            plain(flat)

        channel.give = give
        sent, got = both.push(new.items(), 2, base=1)
        assert before < channel.carried < 3000 < sent.nbytes
        for manifest, found in got:
            assert same(found, new)
            assert manifest == sent


def test_without_a_common_base_everything_is_sent(ends: Callable[..., Any]) -> None:
    named = {"w": torch.randn(500)}
    with ends(deltas=True, bucket=1 << 14) as both:
        both.push(named.items(), 1)
        sent, got = both.push(named.items(), 2, base=None)
        assert all(same(found, named) for _, found in got)
        # a worker that was restarted has no version 2: it says so, and the others say nothing wrong
        both.receivers[1]._base.clear()
        sent, (first, second) = both.push(named.items(), 3, base=2)
        assert same(first[1], named)
        assert str(second) == "the sender sends changes of version 2, this worker has nothing"
        assert isinstance(sent, Manifest)


def test_a_delta_is_applied_to_what_the_version_before_really_was(ends: Callable[..., Any]) -> None:
    """Over memory that sender and receivers share, too, where the next version is packed beside the last."""
    named = {"w": torch.randn(4000).bfloat16(), "b": torch.randn(100)}
    with ends(bucket=1 << 14, deltas=True) as both:
        for version in range(1, 6):
            named["w"][version * 7] += 1
            if version == 3:
                named["b"] = torch.randn(100)  # as a whole
            sent, got = both.push(named.items(), version, base=version - 1 or None)
            for manifest, found in got:
                assert same(found, named)
                assert manifest == sent


# shared memory -----------------------------------------------------------------------------------------------------


def test_a_receiver_cannot_reach_the_senders_bytes_and_keeps_its_own() -> None:
    sent = SharedFile()
    sent.span(0, 256).flat.fill_(7)
    first, second = map_bytes(sent.path, 0, 256), map_bytes(sent.path, 0, 256)
    first.fill_(0)
    assert bool((second == 7).all())
    path = sent.path
    sent.close()
    sent.close()
    assert bool((second == 7).all())  # whoever has it mapped keeps it
    with pytest.raises(OSError, match=r"No such file|fd"):
        map_bytes(path, 0, 256)


def test_what_was_sent_can_give_its_memory_up(kind: str) -> None:
    """A tensor that numpy has shared memory with cannot."""
    both = Ends(kind, receivers=1)
    named = tensors()
    _, ((_, found),) = both.push(named.items(), 1)
    for tensor in named.values():
        tensor.untyped_storage().resize_(0)
    assert same(found, tensors())
    both.sender.close()
    both.receivers[0].close()
    both.point.close()


def test_what_cannot_be_mapped_is_named() -> None:
    sent = SharedFile()
    sent.span(0, 64)
    with pytest.raises(ValueError, match="has 64 bytes, the packet says 128 from 0"):
        map_bytes(sent.path, 0, 128)


def test_buckets_lie_one_after_another_and_keep_their_places() -> None:
    """One file whatever the number of buckets: a process may open no more than so many."""
    sent = SharedFile()
    for number, size in enumerate((5000, 64, 9000)):
        sent.span(number, size).flat.fill_(number + 1)
    places = [span.offset for span in sent.spans]
    assert places == sorted({*places})
    assert sent.span(1, 64).offset == places[1]
    for number, size in enumerate((5000, 64, 9000)):
        assert bool((map_bytes(sent.path, places[number], size) == number + 1).all())
    sent.span(1, 128).flat.fill_(9)  # a bucket that became larger: those after it are placed anew
    assert [span.flat.numel() for span in sent.spans] == [5000, 128]
    assert bool((map_bytes(sent.path, 0, 5000) == 1).all())
    sent.close()


def test_another_transport_is_refused_by_name() -> None:
    with pytest.raises(SyncError, match="weights of kind 'nccl': this end has shared_memory and gloo"):
        connect({"kind": "nccl"}, 1)


@pytest.mark.parametrize("size", [64, 4096])
def test_a_checksum_taken_while_packing_is_that_of_the_bytes(size: int) -> None:
    for bucket in Packer(size).pack(tensors().items()):
        assert bucket.checksum == f"xxh3:{xxhash.xxh3_128(view_of(bucket.flat)).hexdigest()}"
        bucket.verify()


# between processes -----------------------------------------------------------------------------------------------

RECEIVING = """
import json, sys, torch
from vime_core.weights.transports.host import HostReceiver
terms, rank = json.loads(sys.argv[1]), int(sys.argv[2])
receive = HostReceiver()
for version in (1, 2, 3):
    incoming = receive(version, terms, rank, lambda entries, complete: None)
    total = sum(float(t.double().sum()) for _, t in incoming.tensors())
    print(json.dumps([version, incoming.manifest.digest, incoming.manifest.names, round(total, 6)]), flush=True)
"""


def test_the_same_stream_between_processes(kind: str) -> None:
    point = RendezvousStore("127.0.0.1")
    point.open()
    terms = {
        "kind": kind,
        "host": point.host,
        "port": point.port,
        "group": "g",
        "world": 3,
        "bucket": 4096,
        "timeout": 60.0,
    }
    command = [sys.executable, "-c", RECEIVING, json.dumps(terms)]
    workers = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in (1, 2)
    ]
    sender = StreamPublisher(connect, 4096, deltas=True)
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
