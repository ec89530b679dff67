"""A real vLLM OpenAI server as a child process of a Ray actor."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vime_core.inference.control import ServerControl
from vime_core.inference.flags import to_flags
from vime_core.inference.spec import EngineSpec
from vime_core.inference.vllm.server_key import KEY_VARIABLE, MIDDLEWARE
from vime_core.inference.vllm.version import token_route_flags
from vime_core.runtime import ChildProcess, ReservedPort, answers, reachable_host

#: seconds that a server gets to end by itself
_GRACE = 3.0


class ServerEngine(ServerControl):
    """Body of the actor. The server ends with it, however it ends."""

    def __init__(self, spec: EngineSpec, log: Path, timeout: float, key: str) -> None:
        super().__init__(spec.name, "", timeout, key)
        self.spec, self.log = spec, log
        self._port: ReservedPort | None = None
        self._process: ChildProcess | None = None

    async def come_up(self, timeout: float) -> int:
        """Start the server and wait until it can serve. An error comes with the first error in its log."""
        host = self.spec.host or reachable_host()
        self._port = ReservedPort(host, self.spec.port)
        self.url = f"http://{host}:{self._port.number}"
        command = server_command(self.spec, host, self._port.number, token_route_flags())
        self._process = ChildProcess(self.name, command, self.log, server_environment(self.spec, self.key), _GRACE)
        await asyncio.to_thread(self._process.wait_until, lambda: answers(self.url + "/health"), timeout)
        return await super().come_up(timeout)

    async def health(self) -> None:
        if self._process is not None:
            self._process.require_alive()
        await super().health()

    async def shutdown(self, timeout: float = 10.0) -> None:
        await super().shutdown(timeout)
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
        if self._port is not None:
            self._port.release()


def server_command(spec: EngineSpec, host: str, port: int, routes: Sequence[str]) -> list[str]:
    """Not the ``vllm`` command: it asks for the metadata of a distribution that the CPU build does not have."""
    own = ["--model", spec.model, "--host", host, "--port", str(port), *routes]
    quiet = ["--uvicorn-log-level", "warning", "--enable-prompt-tokens-details", "--enable-server-load-tracking"]
    guard = ["--middleware", MIDDLEWARE]  # the last one is asked first
    module = "vllm.entrypoints.openai.api_server"
    return [sys.executable, "-m", module, *own, *quiet, *to_flags(spec.arguments, negatable=True), *guard]


def server_environment(spec: EngineSpec, key: str) -> dict[str, str]:
    """This process's, the engine's, the control routes with their key, and connections that outlive a training step."""
    own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600", KEY_VARIABLE: key}
    return {**os.environ, **own, **spec.environment}
