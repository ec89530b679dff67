"""The middleware that guards a vLLM server, and the key it asks for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from vime_core.api.errors import ConfigError
from vime_core.config.catalogue import Catalogue
from vime_core.inference.server import server_command, server_environment
from vime_core.inference.spec import EngineSpec
from vime_core.inference.vllm.server_key import KEY_VARIABLE, MIDDLEWARE, RequireKey, run_key


def status(path: str, method: str = "POST", key: str | None = None, kind: str = "http") -> Any:
    """What comes back for a request; "served" where it got through."""
    said: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        said.append("served")

    async def send(message: Any) -> None:
        said.append(message.get("status") or message.get("code"))

    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": kind, "path": path, "method": method, "headers": headers}
    asyncio.run(RequireKey(app)(scope, None, send))
    return said[0]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "right")


@pytest.mark.parametrize(
    "path", ["/collective_rpc", "/pause", "/update_weight_version", "/sleep", "/v1/models", "/metrics", "/", "/health/"]
)
def test_every_route_asks_for_the_key(path: str) -> None:
    assert status(path) == status(path, key="wrong") == status(path, key="") == status(path, "OPTIONS") == 401
    assert status(path, key="right") == "served"


def test_only_a_look_whether_it_lives_needs_none() -> None:
    assert status("/health", "GET") == "served"
    assert status("/health", "POST") == 401


def test_other_protocols() -> None:
    assert status("/v1/realtime", kind="websocket") == 1008
    assert status("", kind="lifespan") == "served"


def test_a_server_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(ConfigError, match="VLLM_API_KEY is not set"):
        status("/")


def test_the_key_is_in_the_servers_environment_alone() -> None:
    spec = EngineSpec(0, "model", {"middleware": ["theirs"]}, {})
    command = server_command(spec, "127.0.0.1", 1, [])
    assert command[-2:] == ["--middleware", MIDDLEWARE]
    assert server_environment(spec, "secret")[KEY_VARIABLE] == "secret"
    assert not any("secret" in word for word in command)


@pytest.mark.parametrize("name", ["vllm_api_key", "vllm_hf_token", "router_api_key"])
def test_a_secret_is_no_option(name: str) -> None:
    with pytest.raises(ConfigError, match="is vime's to decide: "):
        Catalogue({}).find(name)


def test_a_key_file(tmp_path: Path) -> None:
    assert len({run_key(None), run_key(None)}) == 2
    file = tmp_path / "key"
    with pytest.raises(ConfigError, match="No such file"):
        run_key(str(file))
    file.write_text("abc\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read it; chmod 600"):
        run_key(str(file))
    file.chmod(0o600)
    assert run_key(str(file)) == "abc"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="one word"):
        run_key(str(file))
