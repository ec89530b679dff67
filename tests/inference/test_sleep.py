"""Engines that give their memory up and take it again, in an actor and behind a server. vLLM's CPU worker keeps what it
has, so this is about states, order and requests; that the memory is free meanwhile only a device can show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inference.conftest import FolderTrainer, configuration, greedy
from vime_core.api.errors import EngineError, SyncError
from vime_core.api.rollout import GenerateReply, GenerateRequest, SamplingParams
from vime_core.weights.transports.shared_memory import SharedMemorySync

pytestmark = pytest.mark.slow

PROMPT = [5, 6, 14, 7]
LENGTH = 10


@pytest.fixture(scope="module", params=["direct", "router"])
def engines(request: pytest.FixtureRequest, start_engines: Callable[..., Any], folders: dict[str, Path]) -> Any:
    return start_engines(configuration(transport=request.param), folders["A"])


def connected(engines: Any, folder: Path) -> tuple[FolderTrainer, SharedMemorySync]:
    trainer, sync = FolderTrainer(folder, engines.config), SharedMemorySync(engines.config)
    sync.connect(trainer, engines)
    return trainer, sync


async def ask(engines: Any, meanwhile: Callable[[], None]) -> GenerateReply:
    """One greedy answer; ``meanwhile`` runs once the request is on its way."""
    client = engines.client_spec.connect()
    params = SamplingParams(max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
    going = asyncio.create_task(client.generate(GenerateRequest((f"ask{id(meanwhile)}",), PROMPT, params)))
    try:
        await asyncio.sleep(0.3)
        await asyncio.to_thread(meanwhile)
        (reply,) = await asyncio.wait_for(going, 60)
        return reply
    finally:
        await client.close()


@pytest.mark.parametrize("level", [1, 2])
def test_what_comes_during_sleep_is_answered_by_the_weights_of_the_sync(
    engines: Any, folders: dict[str, Path], level: int
) -> None:
    """The whole cycle: sleep, weights, sync, keys and values for its canary, answers."""
    trainer, sync = connected(engines, folders["B" if level == 1 else "A"])
    version, turns = engines.versions()[0] + 1, list[str]()

    def cycle() -> None:
        engines.wake("weights")
        turns.append("weights")
        sync.push(version)

    def before_score() -> None:
        turns.append("canary")
        engines.wake("kv_cache")

    engines.sleep(level)
    engines.before_score = before_score
    reply = asyncio.run(ask(engines, cycle))
    engines.before_score = lambda: None
    assert turns == ["weights", "canary"]
    assert set(reply.versions) == {version}
    assert reply.tokens == greedy(trainer.model, PROMPT, LENGTH)
    trainer.close()


def test_an_engine_that_is_not_finished_does_not_sleep(engines: Any) -> None:
    def too_early() -> None:
        engines.wake("weights")
        with pytest.raises(EngineError, match="engine 0 cannot sleep: 1 requests are in flight"):
            engines.sleep(1)
        engines.wake("kv_cache")

    engines.sleep(1)
    assert len(asyncio.run(ask(engines, too_early)).tokens) == LENGTH


def test_a_refused_sync_leaves_an_engine_that_wakes_with_what_it_had(engines: Any, folders: dict[str, Path]) -> None:
    trainer, sync = connected(engines, folders["A"])
    version = engines.versions()[0] + 1
    sync.push(version)
    engines.sleep(1)
    engines.wake("weights")
    trainer.publisher.corrupt = trainer.publisher._count + 1
    with pytest.raises(SyncError, match=r"not committed: engine 0: .*it serves the version it had"):
        sync.push(version + 1)
    engines.wake("kv_cache")
    reply = asyncio.run(ask(engines, lambda: None))
    assert set(reply.versions) == {version}
    assert reply.tokens == greedy(trainer.model, PROMPT, LENGTH)
    trainer.close()


def test_wrong_order_is_an_error_by_name(engines: Any) -> None:
    with pytest.raises(EngineError, match="engine 0: woken with weights, it was not asleep"):
        engines.wake("weights")
    engines.sleep(1)
    with pytest.raises(EngineError, match="engine 0: woken with kv_cache, it still sleeps"):
        engines.wake("kv_cache")


def test_without_weights_there_is_no_way_back(start_engines: Callable[..., Any], folders: dict[str, Path]) -> None:
    """Level 2 dropped them, and the update that was to bring others was refused: nobody may be served."""
    engines = start_engines(configuration(), folders["A"])
    trainer, sync = connected(engines, folders["A"])
    engines.sleep(2)
    engines.wake("weights")
    with pytest.raises(EngineError, match="engine 0 slept at level 2 and has got no weights since"):
        engines.wake("kv_cache")
    trainer.publisher.corrupt = 1
    with pytest.raises(SyncError, match="it slept at level 2 and has got no weights since, and refuses requests until"):
        sync.push(1)
    with pytest.raises(EngineError, match="engine 0 slept at level 2 and has got no weights since"):
        engines.wake("kv_cache")
    trainer.close()
