"""Clients of a run's servers ask no proxy and carry the key, and nobody else makes any."""

from __future__ import annotations

import asyncio
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vime_core
from vime_core.api.errors import EngineError
from vime_core.api.rollout import GenerateRequest, SamplingParams
from vime_core.inference.control import ServerControl
from vime_core.inference.http_client import HttpClientSpec
from vime_core.inference.router import Router
from vime_core.runtime.http import answers, without_proxies

KEY = "the-key"
REPLY = {
    "choices": [
        {
            "token_ids": [7],
            "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}]},
            "weight_versions": [{"version": 0, "start": 0, "end": 1}],
            "finish_reason": "stop",
        }
    ],
    "aborted": 0,
}


class Server(http.server.BaseHTTPRequestHandler):
    """Answers who has the key, in the words of an engine."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = self.headers.get("Authorization") == f"Bearer {KEY}"
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(REPLY).encode() if known else b"no key")

    do_POST = do_GET

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server on this machine, in an environment whose proxy is dead."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_health_and_router_calls(url: str) -> None:
    assert answers(f"{url}/readiness", KEY)
    assert not answers(f"{url}/readiness", "another")
    Router.external(url, KEY).add("http://127.0.0.1:1")
    with pytest.raises(EngineError, match=r"/remove_worker http://127\.0\.0\.1:1: 401"):
        Router(url, None, "another").remove("http://127.0.0.1:1")


def test_generation_and_abort(url: str) -> None:
    spec = HttpClientSpec(url, (url,), concurrency=2, retries=0, timeout=20.0, key=KEY)

    async def run(spec: HttpClientSpec) -> list[int]:
        client = spec.connect()
        try:
            await client.abort()
            (reply,) = await client.generate(GenerateRequest(("r",), [5], SamplingParams(max_tokens=1)))
            return list(reply.tokens)
        finally:
            await client.close()

    assert asyncio.run(run(spec)) == [7]
    assert KEY not in repr(spec)


def test_control_calls(url: str) -> None:
    async def run(key: str) -> int:
        control = ServerControl("engine 0", url, 20.0, key)
        try:
            return await control.abort()
        finally:
            await control.shutdown()

    assert asyncio.run(run(KEY)) == 0
    with pytest.raises(EngineError, match="/abort_requests gave 401"):
        asyncio.run(run("another"))


def test_a_servers_process_gets_no_proxy() -> None:
    environ = {"HTTP_PROXY": "x", "https_proxy": "x", "ALL_PROXY": "x", "NO_PROXY": "x", "PATH": "/bin"}
    assert without_proxies(environ) == {"PATH": "/bin"}


def test_clients_are_made_in_one_place() -> None:
    root = Path(*vime_core.__path__)
    makes = re.compile(r"ClientSession\(|urlopen\(|build_opener\(|httpx|import requests|http\.client")
    assert [str(file.relative_to(root)) for file in root.rglob("*.py") if makes.search(file.read_text())] == [
        "runtime/http.py"
    ]
