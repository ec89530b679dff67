"""Two real servers behind the real router: generation, control, updates, and what remains after each kind of end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.inference.conftest import (
    FolderTrainer,
    assert_gone,
    boundary_is_right,
    configuration,
    greedy,
    logprobs,
    processes,
)
from vime_core.api.errors import EngineError, SyncError
from vime_core.api.rollout import GenerateReply, GenerateRequest, SamplingParams
from vime_core.inference.http_client import HttpClientSpec
from vime_core.runtime.http import http_session
from vime_core.weights.transports.shared_memory import SharedMemorySync

pytestmark = pytest.mark.slow

PROMPT = [5, 6, 14, 7]


@pytest.fixture(scope="module")
def engines(start_engines: Callable[..., Any], folders: dict[str, Path]) -> Any:
    return start_engines(configuration(engines=2, transport="router"), folders["A"])


def generate(engines: Any, requests: list[GenerateRequest], abort_all: bool = False) -> list[GenerateReply]:
    """Their replies; aborted, if at all, as soon as the servers have every one of them."""

    async def run() -> list[GenerateReply]:
        client = engines.client_spec.connect()
        going = asyncio.gather(*(client.generate(request) for request in requests))
        try:
            if abort_all:
                await arrived(engines, sum(len(request.ids) for request in requests))
                await client.abort()
            return [reply for replies in await going for reply in replies]
        finally:
            await client.close()

    return asyncio.run(run())


async def arrived(engines: Any, count: int) -> None:
    """Wait until the servers together have ``count`` requests to answer."""
    async with http_session(engines.client_spec.key) as session, asyncio.timeout(30):
        while True:
            answers = [await (await session.get(f"{url}/load")).json() for url in engines.urls]
            if sum(answer["server_load"] for answer in answers) == count:
                return


def request(name: str, n: int, **params: Any) -> GenerateRequest:
    ids = tuple(f"{name}.{i}" for i in range(n))
    return GenerateRequest(ids, PROMPT, SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **params}), session=name)


def served(engine: Any) -> list[list[int]]:
    """Greedy answers of both engines, since the router takes turns."""
    return [reply.tokens for reply in generate(engine, [request("g", 4, temperature=0.0)])]


def test_log_probs_updates_and_refusals_over_http(engines: Any, folders: dict[str, Path]) -> None:
    trainer = FolderTrainer(folders["A"], engines.config)
    replies = generate(engines, [request(f"r{i}", 8, temperature=0.7) for i in range(2)])
    for reply in replies:
        right = logprobs(trainer.model, PROMPT + reply.tokens, 0.7)[len(PROMPT) - 1 :]
        assert reply.logprobs == pytest.approx(right, abs=1e-5)
        assert set(reply.versions) == {0}
    assert served(engines) == [greedy(trainer.model, PROMPT, 8)] * 4

    sync = SharedMemorySync(engines.config)
    sync.connect(trainer, engines)
    trainer.load(folders["B"])
    receipt = sync.push(1)
    answers = [greedy(trainer.model, PROMPT, 8)] * 4
    assert served(engines) == answers
    assert engines.versions() == [1, 1]
    assert [proof.digest for proof in receipt.engines] == [receipt.digest] * 2
    assert receipt.canary_gap < 1e-5

    trainer.load(folders["A"])
    trainer.publisher.corrupt = 2
    with pytest.raises(SyncError, match="digest"):
        sync.push(2)
    assert served(engines) == answers
    assert engines.versions() == [1, 1]
    trainer.close()


def test_abort_reaches_both_engines_and_returns_partial_answers(engines: Any) -> None:
    replies = generate(engines, [request("long", 8, max_tokens=240)], abort_all=True)
    assert {reply.finish for reply in replies} == {"abort"}
    assert all(len(reply.tokens) == len(reply.logprobs) == len(reply.versions) < 240 for reply in replies)


def test_an_update_under_running_requests_marks_the_boundary_at_both_engines(
    engines: Any, folders: dict[str, Path]
) -> None:
    """How long the requests have to have run for an update to find them between two tokens is not known beforehand."""
    trainer = FolderTrainer(folders["B"], engines.config)
    sync = SharedMemorySync(engines.config)
    sync.connect(trainer, engines)

    def update(wait: float) -> None:
        time.sleep(wait)
        sync.push(engines.versions()[0] + 1)

    async def run(wait: float) -> list[GenerateReply]:
        client = engines.client_spec.connect()
        going = asyncio.create_task(client.generate(request(f"inflight{wait}", 4, max_tokens=240)))
        try:
            await arrived(engines, 4)
            await asyncio.to_thread(update, wait)
            return await going
        finally:
            await client.close()

    for attempt, wait in enumerate((0.02, 0.05, 0.1, 0.2, 0.4, 0.8)):
        trainer.load(folders["BA"[attempt % 2]])
        old = engines.versions()[0]
        replies = asyncio.run(run(wait))
        if all(set(reply.versions) == {old, old + 1} for reply in replies):
            break
    for reply in replies:
        assert len(reply.tokens) == 240
        boundary_is_right(reply, PROMPT, old, old + 1, trainer)
    trainer.close()


def test_a_prompt_that_does_not_fit_is_an_error_with_the_servers_words(engines: Any) -> None:
    params = SamplingParams(max_tokens=8)
    with pytest.raises(EngineError, match=r"long\.0.*400"):
        generate(engines, [GenerateRequest(("long.0",), [5] * 400, params)])


def test_an_external_engine_is_driven_like_ones_own(
    engines: Any, start_engines: Callable[..., Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    address = engines.urls[0].removeprefix("http://")
    config = configuration().replace("engine", rollout_external_engine_addrs=[address])
    with pytest.raises(EngineError, match="401: the key of the run is missing or wrong"):
        start_engines(config, folders["A"])
    key = tmp_path / "key"
    key.write_text(engines.client_spec.key)
    key.chmod(0o600)
    config = config.replace("engine", engine_key_file=str(key))
    group = start_engines(config, folders["A"])
    assert isinstance(group.client_spec, HttpClientSpec)
    assert group.urls == engines.urls[:1]
    assert len(generate(group, [request("external", 2)])) == 2
    group.shutdown()
    engines.health()


def test_nothing_remains_after_a_shutdown(start_engines: Callable[..., Any], folders: dict[str, Path]) -> None:
    group = start_engines(configuration(engines=1, transport="router"), folders["B"])
    started = processes(str(folders["B"]), group.urls[0])
    assert any("api_server" in line for line in started.values())
    assert any("router_process" in line for line in started.values())
    group.shutdown()
    assert_gone(started)


def test_nothing_remains_when_the_actor_is_killed(start_engines: Callable[..., Any], folders: dict[str, Path]) -> None:
    group = start_engines(configuration(engines=1, transport="router"), folders["B"])
    started = processes(str(folders["B"]))
    guard = next(pid for pid, line in started.items() if "vime_core.runtime.supervisor" in line)
    os.kill(psutil.Process(guard).ppid(), signal.SIGKILL)
    assert_gone(started)
    with pytest.raises(EngineError, match="engine 0"):
        group.health()
    group.shutdown()


def test_nothing_remains_when_the_driver_is_killed(folders: dict[str, Path], tmp_path: Path) -> None:
    """The whole cluster goes at once then: Ray kills its workers and their children, in an order of its own."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.inference.drive", str(folders["B"]), str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    try:
        url = next(line.split()[1] for line in driver.stdout if line.startswith("up "))
        started = processes(f"--model {folders['B']}", url)
        assert any("api_server" in line for line in started.values())
        assert any("router_process" in line for line in started.values())
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait(10)
        assert_gone(started, deadline=40.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)  # agents of Ray's that wait for their raylet


def test_a_server_that_cannot_start_says_why(start_engines: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 97, "model_type": "unheard_of"}')
    with pytest.raises(EngineError, match=r"(?s)engine 0.*unheard_of"):
        start_engines(configuration(engines=1, transport="router"), tmp_path)
    assert_gone(processes(str(tmp_path)))
