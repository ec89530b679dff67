"""What a vLLM from before weight versions is given: spans of tokens, and the routes in front of its server.

The classes and the servers of such a vLLM are patched and run by ``make test-vllm-0.23``; here the parts meet vLLM's
names only where every version has them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from vime_ascend.older_vllm.labels import Span, get_version, set_version, spans
from vime_ascend.older_vllm.routes import OlderRoutes

from vime_core.api.streams import ROUTING, TOP_IDS
from vime_core.inference.http_client import reply_from_json


@pytest.mark.parametrize(
    ("starts", "length", "expected"),
    [
        ([("0", 0)], 5, [Span("0", 0, 5)]),
        ([("0", 0)], 0, []),
        ([("0", 0), ("1", 3)], 5, [Span("0", 0, 3), Span("1", 3, 5)]),
        ([("0", 0), ("1", 5)], 5, [Span("0", 0, 5)]),
        ([("0", 0), ("1", 0), ("2", 0)], 5, [Span("2", 0, 5)]),
        ([("0", 0), ("1", 2), ("0", 2)], 5, [Span("0", 0, 2), Span("0", 2, 5)]),  # an update that was taken back
    ],
)
def test_spans_cover_the_tokens_once(starts: list[tuple[str, int]], length: int, expected: list[Span]) -> None:
    assert spans(starts, length) == expected


def test_a_new_version_begins_where_each_request_stands() -> None:
    states = {name: state(length) for name, length in (("a", 3), ("b", 0))}
    processor = SimpleNamespace(request_states=states)
    assert get_version(processor) == "default"
    set_version(processor, "7")
    assert get_version(processor) == "7"
    assert [s.vime_starts[-1] for s in states.values()] == [("7", 3), ("7", 0)]


def state(length: int) -> SimpleNamespace:
    return SimpleNamespace(
        vime_starts=[("default", 0)], detokenizer=SimpleNamespace(output_token_ids=[1] * length), external_req_id=""
    )


# a server ----------------------------------------------------------------------------------------------------------
@dataclass
class Output:
    """vLLM's completion, as far as a reply is made of it."""

    token_ids: list[int]
    logprobs: list[dict[int, Any]]
    weight_versions: list[Span]
    finish_reason: str = "length"
    stop_reason: str | None = None
    routed_experts: Any = None
    index: int = 0


@dataclass
class Engine:
    """An engine client whose answers are given; ``asked`` has its requests, ``aborted`` those it was told to end."""

    output: Output
    asked: list[Any] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    stays: bool = False

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        self.asked.append((prompt, params, request_id))
        try:
            if self.stays:
                await asyncio.sleep(60)
            yield SimpleNamespace(outputs=[self.output], prompt_logprobs=None, num_cached_tokens=2)
        except asyncio.CancelledError:
            self.aborted.append(request_id)
            raise


def place(token: int, others: dict[int, float]) -> dict[int, Any]:
    values = {token: -0.5, **others}
    return {id: SimpleNamespace(logprob=value, rank=rank) for rank, (id, value) in enumerate(values.items(), 1)}


def given(**more: Any) -> Output:
    logprobs = [place(4, {5: -1.0, 6: -2.0}), place(9, {4: -1.5, 7: -2.5})]
    return Output([4, 9], logprobs, [Span("0", 0, 1), Span("1", 1, 2)], **more)


async def call(engine: Engine, method: str, path: str, **more: Any) -> httpx.Response:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware

    app = Starlette(middleware=[Middleware(OlderRoutes)])
    app.state.engine_client = engine
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        return await client.request(method, path, **more)


BODY = {"request_id": "r.0", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2, "logprobs": 2}}


def test_a_reply_has_the_form_that_the_client_reads() -> None:
    engine = Engine(given(routed_experts=np.arange(8, dtype=np.uint8).reshape(4, 1, 2)))
    response = asyncio.run(call(engine, "POST", "/inference/v1/generate", json=BODY))
    reply = reply_from_json("r.0", response.json(), 2)
    assert (reply.tokens, reply.logprobs, reply.versions) == ([4, 9], [-0.5, -0.5], [0, 1])
    assert (reply.finish, reply.cached_tokens) == ("length", 2)
    assert reply.streams[ROUTING].shape == (4, 1, 2)
    assert reply.streams[TOP_IDS].tolist() == [[4, 5], [9, 4]]
    ((prompt, params, name),) = engine.asked
    assert (prompt, params.max_tokens, name) == ({"prompt_token_ids": [1, 2, 3]}, 2, "generate-tokens-r.0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"[1]", "not a JSON object"),
        (json.dumps({"token_ids": [1]}).encode(), "KeyError: 'sampling_params'"),
        (json.dumps({**BODY, "sampling_params": {"heat": 1}}).encode(), "heat"),
        (json.dumps({**BODY, "sampling_params": {"temperature": -1}}).encode(), "temperature"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(content: bytes, message: str) -> None:
    response = asyncio.run(call(Engine(given()), "POST", "/inference/v1/generate", content=content))
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_a_request_that_the_engine_gave_up_is_an_error() -> None:
    response = asyncio.run(call(Engine(given(finish_reason="error")), "POST", "/inference/v1/generate", json=BODY))
    assert (response.status_code, "r.0" in response.text) == (400, True)


def test_other_paths_are_the_servers_own() -> None:
    assert asyncio.run(call(Engine(given()), "GET", "/nowhere")).status_code == 404


def test_a_client_that_goes_away_ends_its_request_and_is_no_load() -> None:
    engine = Engine(given(), stays=True)

    async def run() -> int:
        layer, gone = OlderRoutes(None), asyncio.Event()  # type: ignore[arg-type]
        messages = [{"type": "http.request", "body": json.dumps(BODY).encode(), "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nobody is there")

        app = SimpleNamespace(state=SimpleNamespace(engine_client=engine))
        scope = {"type": "http", "method": "POST", "path": "/inference/v1/generate", "app": app, "headers": []}
        going = asyncio.create_task(layer(scope, receive, send))
        while not engine.asked:
            await asyncio.sleep(0)
        assert layer.running == 1
        gone.set()
        await asyncio.wait_for(going, 20)
        return layer.running

    assert asyncio.run(run()) == 0
    assert engine.aborted == ["generate-tokens-r.0"]


def test_what_vllm_has_is_left_alone_and_what_it_lacks_is_there() -> None:
    code = """
from vllm.v1.engine.llm_engine import LLMEngine
from vime_ascend.older_vllm.labels import install
own = getattr(LLMEngine, "set_weight_version", None)
install()
made = LLMEngine.set_weight_version, LLMEngine.get_weight_version, LLMEngine.wake_up
assert own in (None, made[0])
install()
assert made == (LLMEngine.set_weight_version, LLMEngine.get_weight_version, LLMEngine.wake_up)
print("same")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip().endswith("same"), result.stderr[-500:]
