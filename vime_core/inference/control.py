"""A vLLM server's control routes. Always asked of the server itself: through a router a control call reaches one engine
of many."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.api import EngineError
from vime_core.inference.sleep_mode import Tag
from vime_core.inference.vllm.server_key import KEY_VARIABLE, MIDDLEWARE
from vime_core.inference.vllm_engine import READING, VllmEngine
from vime_core.runtime import answers, http_session
from vime_core.weights import RECEIVER, RECEIVER_VARIABLE

if TYPE_CHECKING:
    import aiohttp

#: what a server has to be started with that vime did not start itself
NEEDED = (
    f"{RECEIVER_VARIABLE}={RECEIVER} VLLM_SERVER_DEV_MODE=1 {KEY_VARIABLE}=$(cat FILE) vllm serve MODEL "
    f"--enable-scale-out --middleware {MIDDLEWARE} --logprobs-mode processed_logprobs "
    "--worker-extension-cls vime_core.inference.vllm.extension.VimeWorkerExtension\n"
    "(FILE is the run's --engine-key-file; vLLM before 0.32 needs VIME_OLDER_VLLM=MODULE of the plugin that serves it, "
    "and the module's SERVER_FLAGS instead of --enable-scale-out)"
)


class ServerControl(VllmEngine):
    """Calls one server.

    Args:
        name: for messages.
        url: ``http://host:port``.
        timeout: deadline of one call in seconds.
        key: what the server asks for.
    """

    def __init__(self, name: str, url: str, timeout: float, key: str = "") -> None:
        self.name, self.url, self.timeout, self.key = name, url, timeout, key
        self._session: aiohttp.ClientSession | None = None

    async def come_up(self, timeout: float) -> int:
        """Check that the server can do what a run needs. An error's message says how to start it."""
        try:
            await self.health()
            await self.worker_call("vime_receipt")
            if await asyncio.to_thread(answers, f"{self.url}/is_paused"):
                raise EngineError(f"{self.name} ({self.url}) lets everybody change its weights: it asks for no key")
            return int((await self._json("GET", "/get_world_size"))["world_size"])
        except EngineError as error:
            raise EngineError(f"{error}\nstart it with: {NEEDED}") from error

    async def prompt_logprobs(self, tokens: Sequence[int]) -> Sequence[Any] | None:
        answer = await self._json(
            "POST", "/inference/v1/generate", json={"token_ids": list(tokens), "sampling_params": READING}
        )
        entries = answer.get("prompt_logprobs")
        return None if entries is None else [_typed(entry) for entry in entries]

    async def abort(self, ids: Sequence[str] | None = None) -> int:
        body = {} if ids is None else {"request_ids": [f"generate-tokens-{id}" for id in ids]}
        return int((await self._json("POST", "/abort_requests", json=body))["aborted"])

    async def weight_version(self) -> int:
        return int((await self._json("GET", "/weight_info"))["weight_version"])

    async def health(self) -> None:
        await self._call("GET", "/health")

    async def shutdown(self, timeout: float = 10.0) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # what an update is made of ---------------------------------------------------------------------------------
    async def is_paused(self) -> bool:
        return bool((await self._json("GET", "/is_paused"))["is_paused"])

    async def pause(self) -> None:
        await self._call("POST", "/pause", params={"mode": "keep"})

    async def resume(self) -> None:
        await self._call("POST", "/resume")

    async def worker_call(self, method: str, *arguments: str) -> list[str]:
        answer = await self._json("POST", "/collective_rpc", json={"method": method, "args": list(arguments)})
        return answer["results"]

    async def set_version(self, version: int) -> None:
        await self._call("POST", "/update_weight_version", json={"new_version": str(version)})

    async def drop_caches(self) -> None:
        answer = await self._json("POST", "/reset_prefix_cache", params={"reset_running_requests": "true"})
        if not answer["success"]:
            raise EngineError(f"{self.name} did not drop the keys and values of the old weights")

    # sleep, of servers that vime started -----------------------------------------------------------------------
    async def in_flight(self) -> int:
        return int((await self._json("GET", "/load"))["server_load"])

    async def fall_asleep(self, level: int) -> None:
        await self._call("POST", "/sleep", params={"level": str(level)})

    async def wake_part(self, tags: Sequence[Tag]) -> bool:
        answer = await self._json("POST", "/wake_up", params=[("tags", tag) for tag in tags])
        return answer["status"] == "awake"

    # transport -------------------------------------------------------------------------------------------------
    async def _json(self, method: str, path: str, **more: Any) -> Any:
        return json.loads(await self._call(method, path, **more))

    async def _call(self, method: str, path: str, **more: Any) -> str:
        import aiohttp

        if self._session is None:
            limit = aiohttp.ClientTimeout(total=self.timeout)
            # a fresh connection a call: there are few, and servers close idle ones after seconds
            connector = aiohttp.TCPConnector(force_close=True)
            self._session = http_session(self.key, self.url, timeout=limit, connector=connector)
        try:
            async with self._session.request(method, path, **more) as response:
                text = await response.text()
                if response.status != 200:
                    raise EngineError(f"{self.name} ({self.url}): {path} gave {response.status}: {text[:2000]}")
                return text
        except (TimeoutError, aiohttp.ClientError) as error:
            raise EngineError(f"{self.name} ({self.url}): {path}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class _Logprob:
    logprob: float


def _typed(entry: Mapping[str, Any] | None) -> dict[int, _Logprob] | None:
    """JSON has text for keys; vLLM's own objects have token ids."""
    return None if entry is None else {int(token): _Logprob(value["logprob"]) for token, value in entry.items()}
