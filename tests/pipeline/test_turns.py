"""Whose turn it is: the order in which trainer and engines are asked to move, and what is asked of whom."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from vime_core.api import Receipt, SyncError
from vime_core.config.sections import Config
from vime_core.devices.cpu import CpuBackend
from vime_core.pipeline.device_sharing import DeviceSharing, SharedDevices, device_sharing_of
from vime_core.pipeline.run_stack import RunStack


class SleepyBackend(CpuBackend):
    supports_sleep = True


class Notes:
    """Trainer and engines that write down what they are asked for. ``fails``: the request that goes wrong."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fails = ""
        self.before_score: Any = None

    def note(self, line: str) -> None:
        if line == self.fails:
            raise SyncError(f"{line} went wrong")
        self.lines.append(line)

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    # the trainer's
    def finish_setup(self, started: Any) -> None:
        self.note("set up")

    def placements(self) -> list[str]:
        return ["place"]

    def offload(self, parts: list[str]) -> int:
        self.note(f"out {' '.join(parts)}")
        return 10 if parts == ["weights"] else 100

    def onload(self, parts: list[str]) -> None:
        self.note(f"in {' '.join(parts)}")

    # the engines'
    def sleep(self, level: int) -> None:
        self.note(f"sleep {level}")

    def wake(self, *tags: str) -> None:
        self.note(f"wake {' '.join(tags)}")


@pytest.fixture
def notes() -> Notes:
    return Notes()


@contextlib.contextmanager
def untimed() -> Iterator[None]:
    yield


def shared(notes: Any, level: int | None = 2, offloads: bool = True) -> DeviceSharing:
    turns = SharedDevices(notes, level, offloads, untimed)
    assert turns.before_engines([]) == ["place"]
    turns.engines_are_up(notes)
    return turns


def push(turns: DeviceSharing, notes: Any) -> None:
    """Through the stack's own push, by a sync that asks for the canary when the weights are over."""

    def sync(version: int) -> Receipt:
        notes.note("weights over")
        if notes.before_score is not None:
            notes.before_score()
        notes.note("canary")
        return Receipt(version, "d", 400, 1, 0.1, ())

    stack = RunStack(notes, SimpleNamespace(), notes, SimpleNamespace(push=sync), SimpleNamespace(), turns)
    receipt = stack.push(0)
    assert receipt is not None
    assert receipt.version == 0


@pytest.mark.parametrize("answer", [None, "done", Receipt(6, "d", 400, 1, 0.1, ())])
def test_a_sync_without_the_receipt_of_its_version_has_not_happened(notes: Notes, answer: object) -> None:
    sync = SimpleNamespace(push=lambda version: answer)
    stack = RunStack(notes, SimpleNamespace(), notes, sync, SimpleNamespace(), DeviceSharing())
    with pytest.raises(SyncError, match=r"push\(7\) returned .*: it must return the Receipt of that version"):
        stack.push(7)


def test_a_run_from_its_start_to_its_export(notes: Notes) -> None:
    turns = shared(notes)
    assert notes.take() == ["set up", "out weights", "out rest"]
    first = ["sleep 2", "in weights", "wake weights", "weights over", "out weights", "wake kv_cache", "canary"]
    push(turns, notes)
    assert notes.take() == first
    turns.sampling()  # an evaluation, and the first samples
    assert notes.take() == []
    turns.training()
    assert notes.take() == ["sleep 2", "in weights rest"]
    push(turns, notes)
    assert notes.take() == ["out rest", *first[2:]]
    turns.saving()
    assert notes.take() == ["sleep 1", "in weights rest"]  # these engines go on with the weights that they have
    turns.sampling()
    assert notes.take() == ["out weights", "out rest", "wake weights", "wake kv_cache"]
    assert turns.metrics() == {"perf/offload_bytes": 110.0}
    turns.saving()
    turns.saving()
    assert notes.take() == ["sleep 1", "in weights rest"]


def test_a_step_without_a_sync_wakes_whole_engines(notes: Notes) -> None:
    turns = shared(notes, level=1)
    push(turns, notes)
    turns.training()
    notes.take()
    turns.sampling()
    assert notes.take() == ["out weights", "out rest", "wake weights", "wake kv_cache"]


@pytest.mark.parametrize("fails", ["wake weights", "weights over", "out weights", "wake kv_cache", "canary"])
def test_after_an_error_it_is_known_what_is_where(notes: Notes, fails: str) -> None:
    """Whatever broke in a sync, the next turn asks for what has not been done, and for nothing twice."""
    turns = shared(notes, level=1)
    push(turns, notes)
    turns.training()
    notes.take()
    notes.fails = fails
    with pytest.raises(SyncError, match=f"{fails} went wrong"):
        push(turns, notes)
    notes.fails = ""
    done = [line for line in notes.take() if line not in ("weights over", "canary")]
    assert ("wake kv_cache" in done) is (fails == "canary")  # nobody is answered before all went well
    turns.sampling()
    assert sorted(done + notes.take()) == sorted(["out rest", "wake weights", "out weights", "wake kv_cache"])


def test_a_sync_that_was_given_up_does_not_put_half_an_engine_to_sleep(notes: Notes) -> None:
    turns = shared(notes, level=1)
    turns.syncing()
    notes.take()
    turns.saving()
    assert notes.take() == ["out weights", "wake kv_cache", "sleep 1", "in weights rest"]


def test_each_side_may_stay(notes: Notes) -> None:
    turns = shared(notes, level=None)
    push(turns, notes)
    turns.training()
    turns.sampling()
    first = ["set up", "out weights", "out rest", "in weights", "weights over", "out weights", "canary"]
    assert notes.take() == [*first, "in weights rest", "out weights", "out rest"]
    turns = shared(notes, level=1, offloads=False)
    push(turns, notes)
    turns.training()
    turns.sampling()
    asleep = ["sleep 1", "wake weights", "weights over", "wake kv_cache", "canary"]
    assert notes.take() == [*asleep, "sleep 1", "wake weights", "wake kv_cache"]
    assert turns.metrics() == {}


def test_with_devices_of_their_own_nobody_moves(notes: Notes) -> None:
    turns = device_sharing_of(Config(), SleepyBackend(), notes, untimed)  # type: ignore[arg-type]
    assert turns.before_engines([]) == ()
    turns.engines_are_up(notes)  # type: ignore[arg-type]
    for turn in (turns.training, turns.saving, turns.sampling):
        turn()
    push(turns, notes)
    assert notes.take() == ["weights over", "canary"]
    assert turns.metrics() == {}


@pytest.mark.parametrize(
    ("device", "wishes", "moves"),
    [
        (CpuBackend, {}, []),
        (CpuBackend, {"offload_rollout": True}, ["sleep 1"]),
        (CpuBackend, {"offload_train": True, "offload_rollout": True}, ["sleep 1", "in weights rest"]),
        (SleepyBackend, {}, ["sleep 1", "in weights rest"]),
        (SleepyBackend, {"rollout_sleep_level": 2}, ["sleep 2", "in weights rest"]),
        (SleepyBackend, {"offload_train": False}, ["sleep 1"]),
        (SleepyBackend, {"offload_rollout": False}, ["in weights rest"]),
    ],
)
def test_the_device_decides_what_the_configuration_leaves_open(
    notes: Notes, device: type[CpuBackend], wishes: dict[str, Any], moves: list[str]
) -> None:
    config = Config().replace("cluster", colocate=True, **wishes)
    turns = device_sharing_of(config, device(), notes, untimed)  # type: ignore[arg-type]
    assert turns.before_engines([]) == ["place"]
    turns.engines_are_up(notes)  # type: ignore[arg-type]
    notes.take()
    turns.training()
    assert notes.take() == moves
