"""The engine inside a Ray actor's own process: no server, no router, no second copy of anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vime_core.api import EngineError, GenerateRequest
from vime_core.config import as_flag
from vime_core.inference.columns import ReplyColumns
from vime_core.inference.sleep_mode import Tag
from vime_core.inference.spec import EngineSpec
from vime_core.inference.vllm.outputs import Failure, ReceiveQueue, reply_from_output
from vime_core.inference.vllm.sampling import vllm_sampling
from vime_core.inference.vllm_engine import READING, VllmEngine
from vime_core.runtime import log_error

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

    from vime_core.inference.vllm.engine_thread import EngineLoop, Job, Mailbox

T = TypeVar("T")


class DirectEngine(VllmEngine):
    """Body of the actor."""

    def __init__(self, spec: EngineSpec, log: Path) -> None:
        self.spec, self.name, self.log = spec, spec.name, log
        self._loop: EngineLoop | None = None

    async def come_up(self, timeout: float) -> int:
        """Load the model. An error's message ends with vLLM's."""
        from vime_core.inference.vllm.engine_thread import EngineLoop

        self._loop = EngineLoop(self._make)
        try:
            await asyncio.to_thread(self._loop.ready, timeout)
        except Exception as error:
            what = f"{self.name} did not start: {type(error).__name__}: {error}"
            raise EngineError(what + log_error(self.log)) from error
        return self.spec.tensor_parallel_size

    def _make(self) -> LLMEngine:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from vime_core.inference.vllm.version import prepare_vllm

        prepare_vllm()
        # a step still in flight would see the weights of a call that comes after it
        arguments = {"async_scheduling": False, **self.spec.arguments}
        return LLMEngine.from_engine_args(EngineArgs(model=self.spec.model, **typed_arguments(arguments)))

    # generation ----------------------------------------------------------------------------------------------
    async def generate(self, requests: Sequence[GenerateRequest]) -> AsyncIterator[ReplyColumns]:
        """The replies in the order in which they finish, all that one step of the engine finished together."""
        self.require_weights()
        mailbox = ReceiveQueue(reply_from_output)
        jobs = [job for request in requests for job in _jobs(request, mailbox)]
        self._engine_loop().submit(jobs)
        left = len(jobs)
        while left:
            results = await mailbox.take()
            left -= len(results)
            failures = [(r.id, r.message) for r in results if isinstance(r, Failure)]
            yield ReplyColumns.pack([r for r in results if not isinstance(r, Failure)], failures)

    async def abort(self, ids: Sequence[str] | None = None) -> int:
        """Abort what runs, or the requests of ``ids``; how many that were."""
        return await asyncio.wrap_future(self._engine_loop().abort(ids))

    async def prompt_logprobs(self, tokens: Sequence[int]) -> Sequence[Any] | None:
        from vllm import SamplingParams

        from vime_core.inference.vllm.engine_thread import Job

        mailbox = ReceiveQueue(lambda id, output: output)
        self._engine_loop().submit([Job("canary", list(tokens), SamplingParams(**READING), mailbox)])
        (output,) = await mailbox.take()
        if isinstance(output, Failure):
            raise EngineError(f"{self.name}: {output.message}")
        return output.prompt_logprobs

    # control: what an update is made of ----------------------------------------------------------------------------
    async def is_paused(self) -> bool:
        return self._engine_loop().paused

    async def pause(self) -> None:
        await self._call(lambda engine: self._hold(True))

    async def resume(self) -> None:
        await self._call(lambda engine: self._hold(False))

    async def worker_call(self, method: str, *arguments: str) -> list[str]:
        return await self._call(lambda engine: engine.collective_rpc(method, args=arguments))

    async def set_version(self, version: int) -> None:
        await self._call(lambda engine: engine.set_weight_version(str(version)))

    async def drop_caches(self) -> None:
        await self._call(lambda engine: engine.reset_prefix_cache(reset_running_requests=True))

    # control: sleep --------------------------------------------------------------------------------------------
    async def in_flight(self) -> int:
        return await self._call(lambda engine: self._engine_loop().active)

    async def fall_asleep(self, level: int) -> None:
        await self._call(lambda engine: self._suspend(engine, level))

    async def wake_part(self, tags: Sequence[Tag]) -> bool:
        return await self._call(lambda engine: self._revive(engine, tags))

    def _suspend(self, engine: LLMEngine, level: int) -> None:
        self._hold(True)
        engine.sleep(level)

    def _revive(self, engine: LLMEngine, tags: Sequence[Tag]) -> bool:
        awake = engine.wake_up(list(tags))
        self._hold(not awake)
        return awake

    # control: what the driver asks for -------------------------------------------------------------------------
    async def weight_version(self) -> int:
        return int(await self._call(lambda engine: engine.get_weight_version()))

    async def health(self) -> None:
        await self._call(lambda engine: None)

    async def shutdown(self, timeout: float = 10.0) -> None:
        if self._loop is not None:
            await asyncio.to_thread(self._loop.stop, timeout)

    async def _call(self, work: Callable[[LLMEngine], T]) -> T:
        return await asyncio.wrap_future(self._engine_loop().call(work))

    def _hold(self, value: bool) -> None:
        self._engine_loop().paused = value

    def _engine_loop(self) -> EngineLoop:
        if self._loop is None:
            raise EngineError(f"{self.name} has not been started")
        return self._loop


def _jobs(request: GenerateRequest, mailbox: Mailbox) -> list[Job]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from vime_core.inference.vllm.engine_thread import Job

    def params(seed: int | None) -> SamplingParams:
        keywords = vllm_sampling(request.params, seed)
        return SamplingParams(**keywords, output_kind=RequestOutputKind.FINAL_ONLY, flat_logprobs=True)

    tokens = list(request.tokens)
    if request.seeds:
        return [Job(id, tokens, params(seed), mailbox) for id, seed in zip(request.ids, request.seeds)]
    shared = params(None)
    return [Job(id, tokens, shared, mailbox) for id in request.ids]


def typed_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """EngineArgs keywords from plain values.

    Raises:
        EngineError: an option of vLLM's server that an engine without a server does not have.
    """
    from vllm.engine.arg_utils import EngineArgs

    unknown = sorted(set(arguments) - set(EngineArgs.__dataclass_fields__))
    if unknown:
        names = ", ".join(as_flag(f"vllm_{name}") for name in unknown)
        raise EngineError(f"{names}: options of vLLM's server; use them with --engine-transport router")
    # None means "as vLLM has it", which is not None for every argument
    return {name: value for name, value in arguments.items() if value is not None}
