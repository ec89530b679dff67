"""The key of a run: whoever has it may use its engines and its router.

A vLLM server of a run has routes that change weights and call any method of a worker; vLLM's own key guards none of
them. So its server gets a middleware that guards every route. The key reaches the processes in their environment, which
only their own user can read: never on a command line, never in the run folder.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from vime_core.api import ConfigError

#: vLLM's own variable, so that its own check asks for the same key
KEY_VARIABLE = "VLLM_API_KEY"
#: argument of vLLM's ``--middleware``
MIDDLEWARE = "vime_core.inference.vllm.server_key.RequireKey"
#: the one route without a key: it says nothing but that the server is there, and routers ask it without one
_OPEN = "/health"

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


class RequireKey:
    """ASGI middleware: 401 for everything that comes without the key.

    Raises:
        ConfigError: the environment has none.
    """

    def __init__(self, app: App) -> None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise ConfigError(f"{MIDDLEWARE}: {KEY_VARIABLE} is not set: give the key of the run")
        self._app, self._wanted = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._may(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"the key of the run is missing or wrong"})

    def _may(self, scope: Scope) -> bool:
        if scope["path"] == _OPEN and scope.get("method") == "GET":
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return secrets.compare_digest(given, self._wanted)


def run_key(file: str | None) -> str:
    """The key in ``file``, or a new one.

    Raises:
        ConfigError: the file cannot be read, is empty, or others than its owner can read it.
    """
    if file is None:
        return secrets.token_urlsafe(32)
    path = Path(file).expanduser()
    try:
        key, mode = path.read_text().strip(), path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"--engine-key-file {file}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"--engine-key-file {file}: others can read it; chmod 600 {file}")
    if not key or not key.isascii() or len(key.split()) != 1:
        raise ConfigError(f"--engine-key-file {file}: it must hold one word, the key")
    return key
