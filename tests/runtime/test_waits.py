"""Waits on real Ray actors: what fails is heard at once, as it was raised, and under the name of who said it."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from vime_core.api.errors import ConfigError, DeadlineError, EngineError, Interrupted, VimeError
from vime_core.runtime.deadline import Deadline
from vime_core.runtime.signals import Interrupts
from vime_core.runtime.waits import gather, get, settle

LINES = ["--lr 0: must be above 0", "--seed x: not a number"]


class Rank:
    """Answers, refuses with an error that carries more than its message, breaks, hangs or dies."""

    def answer(self, value: int) -> int:
        return value

    def refuse(self) -> None:
        error = ConfigError(LINES)
        error.rank = 3  # type: ignore[attr-defined]  # said by the one who raises it
        raise error

    def stopped(self) -> None:
        raise Interrupted(signal.SIGTERM)

    def broken(self) -> None:
        raise KeyError("layer 7")

    def hang(self) -> None:
        time.sleep(60)

    def die(self) -> None:
        os._exit(1)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    """``ranks()`` is a new one."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield ray.remote(Rank).options(num_cpus=0).remote
    ray.shutdown()


@pytest.fixture(scope="module")
def rank(ranks: Any) -> Any:
    return ranks()


def right(error: Exception) -> None:
    """It is the remote ConfigError, whole."""
    assert type(error) is ConfigError
    assert error.violations == LINES
    assert error.rank == 3  # type: ignore[attr-defined]
    assert str(error) == "\n".join(LINES)
    assert type(error.__cause__).__name__.startswith("RayTaskError")


def test_answers_come_in_order(rank: Any) -> None:
    refs = [rank.answer.remote(i) for i in range(3)]
    assert get(refs, Deadline(60), "numbers") == gather("abc", refs, Deadline(60), "numbers") == [0, 1, 2]
    assert get(refs[1], Deadline(60), "a number") == 1
    assert get([], Deadline(60), "nothing") == []


def test_a_failed_rank_is_heard_while_its_siblings_hang(ranks: Any, rank: Any) -> None:
    hanging = ranks()
    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        get([hanging.hang.remote(), rank.refuse.remote()], Deadline(50), "a collective")
    assert time.monotonic() - started < 20
    right(caught.value)


def test_an_error_keeps_its_attributes_and_says_where_it_came_from(rank: Any) -> None:
    answered, refused, broken = settle(
        ["engine 0", "engine 1", "engine 2"],
        [rank.answer.remote(5), rank.refuse.remote(), rank.broken.remote()],
        Deadline(60),
        "load",
    )
    assert answered == 5
    right(refused)
    assert type(broken) is EngineError
    assert str(broken).startswith("engine 2: load: KeyError: 'layer 7'\n")
    assert "in broken" in str(broken)
    with pytest.raises(ConfigError) as caught:
        gather(["a", "b"], [rank.answer.remote(1), rank.refuse.remote()], Deadline(60), "load")
    right(caught.value)


@pytest.mark.parametrize("wait", [get, lambda *rest: gather("a", *rest)], ids=["get", "gather"])
def test_an_error_whose_class_takes_other_arguments_than_its_message(rank: Any, wait: Any) -> None:
    with pytest.raises(Interrupted) as caught:
        wait([rank.stopped.remote()], Deadline(60), "train")
    assert (caught.value.signal, caught.value.exit_code) == (signal.SIGTERM, 143)


def test_a_defect_keeps_its_traceback_in_the_message(rank: Any) -> None:
    with pytest.raises(VimeError, match=r"(?s)^setup: KeyError: 'layer 7'\n.*in broken"):
        get(rank.broken.remote(), Deadline(60), "setup")


def test_a_dead_process_is_named(ranks: Any) -> None:
    with pytest.raises(VimeError, match=r"^training of step 1: the worker process died: "):
        get(ranks().die.remote(), Deadline(60), "training of step 1")
    (dead,) = settle(["engine 4"], [ranks().die.remote()], Deadline(60), "score")
    assert type(dead) is EngineError
    assert str(dead).startswith("engine 4: score: the worker process died: ")
    assert "\n" not in str(dead)


def test_a_deadline_ends_a_wait_and_says_who_is_late(ranks: Any, rank: Any) -> None:
    refs = [rank.answer.remote(1), ranks().hang.remote()]
    get(refs[0], Deadline(60), "the first")
    with pytest.raises(DeadlineError, match=r"^sync: 1 of 2 did not answer within 1 s$"):
        get(refs, Deadline(1), "sync")
    answer, late = settle(["a", "b"], refs, Deadline(0), "sync")
    assert (answer, str(late)) == (1, "b: sync: no answer in 0 s")


def test_a_stop_gives_a_wait_up(ranks: Any) -> None:
    hanging = ranks()
    with Interrupts(announce=lambda line: None) as stop:
        ref = hanging.hang.remote()
        os.kill(os.getpid(), signal.SIGINT)
        for wait in (get, lambda *rest: settle("a", *rest)):
            with pytest.raises(Interrupted):
                wait([ref], stop.within(50), "sampling")
        with pytest.raises(DeadlineError):
            get([ref], Deadline(0.1), "what has to be done all the same")


def test_a_run_that_nobody_stops_waits_on() -> None:
    deadline = Interrupts().within(0.05)
    deadline.check()
    assert 0 < deadline.left() <= deadline.seconds
    assert not deadline.expired()
    time.sleep(0.06)
    assert deadline.expired()
    assert deadline.left() == 0
