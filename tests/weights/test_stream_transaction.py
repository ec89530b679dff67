"""The driver's end of a stream: who is told what, and what is said when trainer or engines fail."""

from __future__ import annotations

from typing import Any

import pytest

from vime_core import Config
from vime_core.api.errors import Interrupted, SyncError, TrainerError
from vime_core.api.weight_sync import EngineProof
from vime_core.weights.manifest import Manifest
from vime_core.weights.transports.gloo import GlooSync


class Ends:
    """Trainer and engines that note what they are asked, and fail on order."""

    workers = (1, 2)

    def __init__(self) -> None:
        self.terms: list[dict[str, Any]] = []
        self.trainer_fault: Exception | None = None
        self.engine_fault: Exception | None = None

    def open(self, terms: dict[str, Any]) -> None:
        self.terms.append(terms)

    def publish(self, version: int) -> Manifest:
        if self.trainer_fault is not None:
            raise self.trainer_fault
        return Manifest(version, "d1", ())

    def apply(self, version: int, terms: dict[str, Any]) -> list[EngineProof]:
        assert terms["group"] == self.terms[-1]["group"]
        if self.engine_fault is not None:
            raise self.engine_fault
        return [EngineProof("engine 0", version, "d1", 0)]


@pytest.fixture
def sync():
    made = GlooSync(Config())
    yield made
    made.close()


class Engines(Ends):
    """Engines whose canary is ``gap`` off the trainer's."""

    canary, seconds = (1, 2), {}

    def __init__(self, gap: float = 0.0) -> None:
        super().__init__()
        self.gap, self.discarded = gap, list[int]()

    def score(self, tokens: Any) -> list[list[float]]:
        return [[-1.0 - self.gap]]

    def discard(self, version: int) -> bool:
        self.discarded.append(version)
        return True


class Trainer(Ends):
    def score(self, tokens: Any) -> list[float]:
        return [-1.0]


def pushed(sync: GlooSync, engines: Engines, version: int) -> Any:
    trainer = Trainer()
    engines.terms = trainer.terms
    sync.connect(trainer, engines)
    return sync.push(version)


def test_a_version_is_committed_when_the_canary_agrees(sync: GlooSync) -> None:
    engines = Engines()
    assert pushed(sync, engines, 1).canary_gap == 0.0
    assert (engines.discarded, sync._committed) == ([], 1)


def test_a_canary_that_differs_takes_the_version_from_the_engines(sync: GlooSync) -> None:
    engines = Engines(gap=1.0)
    with pytest.raises(SyncError, match=r"version 1 not committed: .*no engine serves anything until a push passes"):
        pushed(sync, engines, 1)
    assert (engines.discarded, sync._committed) == ([1], None)


def deliver(sync: GlooSync, ends: Ends, version: int) -> Any:
    return sync.deliver(ends, ends, version, {})


def test_both_ends_get_the_same_terms_and_the_base_only_after_a_commit(sync: GlooSync) -> None:
    ends = Ends()
    deliver(sync, ends, 1)
    deliver(sync, ends, 2)  # version 1 was not committed: nobody may build on it
    sync._committed = 2
    deliver(sync, ends, 3)
    assert [terms["base"] for terms in ends.terms] == [None, None, 2]
    assert len({terms["group"] for terms in ends.terms}) == 1
    assert ends.terms[0]["world"] == 4


@pytest.mark.parametrize(
    ("trainer", "engine", "says"),
    [
        (TrainerError("rank 0 died"), None, "the trainer: rank 0 died"),
        (None, SyncError("engine 1: names missing"), "engine 1: names missing"),
        (TrainerError("rank 0 died"), SyncError("engine 1: no"), "engine 1: no; the trainer: rank 0 died"),
    ],
)
def test_a_failure_is_a_sync_error_and_the_next_push_meets_anew(sync, trainer, engine, says) -> None:
    ends = Ends()
    deliver(sync, ends, 1)
    sync._committed = 1
    ends.trainer_fault, ends.engine_fault = trainer, engine
    with pytest.raises(SyncError) as caught:
        deliver(sync, ends, 2)
    assert str(caught.value) == says
    ends.trainer_fault = ends.engine_fault = None
    deliver(sync, ends, 3)
    groups = [terms["group"] for terms in ends.terms]
    assert groups[0] == groups[1] != groups[2]
    assert ends.terms[2]["base"] is None


def test_a_stop_is_a_stop(sync: GlooSync) -> None:
    ends = Ends()
    ends.trainer_fault = Interrupted(15)
    with pytest.raises(Interrupted):
        deliver(sync, ends, 1)
