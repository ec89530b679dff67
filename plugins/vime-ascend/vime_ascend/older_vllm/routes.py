"""Routes of later servers for a vLLM server that does not have them: token ids in and out with weight versions, aborts,
weight versions, and answers that say what became of a call.

An ASGI layer in front of the server's own application (``--middleware``); a path that is not listed goes on to it. What
it sends has the form that a server of vLLM 0.32 sends, so clients know one form.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vime_ascend.older_vllm import labels

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

#: what a server puts before the ids that its clients give
_PREFIX = "generate-tokens-"

#: vLLM's name for a request that its engine refused
_FAILED = ("error", None)


class OlderRoutes:
    """The layer. It counts the requests that it has not answered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.running = app, 0
        self.routes: Mapping[tuple[str, str], Callable[[Request, Any], Awaitable[Any]]] = {
            ("POST", "/inference/v1/generate"): self._generate,
            ("POST", "/abort_requests"): _abort,
            ("GET", "/weight_info"): _weight_info,
            ("POST", "/update_weight_version"): _update_weight_version,
            ("POST", "/reset_prefix_cache"): _reset_prefix_cache,
            ("POST", "/wake_up"): _wake_up,
            ("GET", "/load"): self._load,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        route = self.routes.get((scope.get("method", ""), scope.get("path", ""))) if scope["type"] == "http" else None
        if route is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            content, status = await route(request, scope["app"].state.engine_client), 200
        except ValueError as error:
            content, status = {"error": {"message": str(error), "type": type(error).__name__}}, 400
        if content is not None:
            await JSONResponse(content, status)(scope, receive, send)

    async def _load(self, request: Request, engine: Any) -> Mapping[str, int]:
        return {"server_load": self.running}

    async def _generate(self, request: Request, engine: Any) -> Mapping[str, Any] | None:
        """None where the client went away; its request is aborted then."""
        body = await _body(request)
        self.running += 1
        work = asyncio.create_task(_answer(engine, body))
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            self.running -= 1
            for task in (work, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await work


async def _answer(engine: Any, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """One request to its end. A cancelled one is aborted by vLLM's own generator."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    try:
        params = SamplingParams(**body["sampling_params"], output_kind=RequestOutputKind.FINAL_ONLY)
        prompt = {"prompt_token_ids": [int(token) for token in body["token_ids"]]}
    except Exception as error:  # every version of vLLM has errors of its own for this
        raise ValueError(f"not a request for tokens: {type(error).__name__}: {error}") from error
    outputs = [output async for output in engine.generate(prompt, params, _PREFIX + str(body.get("request_id")))]
    final = outputs[-1] if outputs else None
    if final is None or final.outputs[0].finish_reason in _FAILED:
        raise ValueError(f"the engine ended request {body.get('request_id')} without an answer")
    details = {"prompt_tokens_details": {"cached_tokens": final.num_cached_tokens}}
    return {
        "choices": [_choice(output, params.logprobs) for output in final.outputs],
        "usage": details,
        "prompt_logprobs": _prompt(final.prompt_logprobs),
    }


def _choice(output: Any, asked: int | None) -> Mapping[str, Any]:
    tokens = list(output.token_ids)
    content = None if asked is None else [_place(token, entry) for token, entry in zip(tokens, output.logprobs or ())]
    return {
        "index": output.index,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "token_ids": tokens,
        "logprobs": None if content is None else {"content": content},
        "routed_experts": _routing(output.routed_experts),
        "weight_versions": [vars(span) for span in output.weight_versions or ()],
    }


def _place(token: int, entry: Mapping[int, Any]) -> Mapping[str, Any]:
    """The sampled token, and the likeliest in the engine's order."""
    listed = [{"token_id": id, "logprob": one.logprob, "rank": one.rank} for id, one in entry.items()]
    return {"token_id": token, "logprob": entry[token].logprob, "top_logprobs": listed}


def _prompt(entries: Sequence[Mapping[int, Any] | None] | None) -> Sequence[Any] | None:
    if entries is None:
        return None
    return [None if e is None else {str(id): {"logprob": one.logprob} for id, one in e.items()} for e in entries]


def _routing(experts: Any) -> str | None:
    import numpy as np

    if experts is None:
        return None
    buffer = io.BytesIO()
    np.save(buffer, experts)
    return base64.b64encode(buffer.getvalue()).decode()


async def _abort(request: Request, engine: Any) -> Mapping[str, int]:
    """All requests, or those named."""
    ids = (await _body(request)).get("request_ids")
    states = engine.output_processor.request_states
    wanted = [own for own, state in states.items() if ids is None or state.external_req_id in ids]
    await engine.abort(wanted, internal=True)
    return {"aborted": len(wanted)}


async def _weight_info(request: Request, engine: Any) -> Mapping[str, str]:
    return {"weight_version": labels.get_version(engine.output_processor)}


async def _update_weight_version(request: Request, engine: Any) -> Mapping[str, bool]:
    """Once the outputs of all steps are in. The engine takes none meanwhile: what it still sent stands in its queue."""
    version = str((await _body(request))["new_version"])
    await _delivered(engine)
    labels.set_version(engine.output_processor, version)
    return {"success": True}


async def _delivered(engine: Any) -> None:
    """A call that has gone to the engine and back came after all outputs; they are in once the queue is empty and the
    task that takes from it has had its turns (it gives way between chunks of one step's outputs)."""
    await engine.is_paused()
    while not engine.engine_core.outputs_queue.empty():
        await asyncio.sleep(0)
    turns = len(engine.output_processor.request_states) + 2
    for _ in range(turns):
        await asyncio.sleep(0)


async def _reset_prefix_cache(request: Request, engine: Any) -> Mapping[str, bool]:
    running = request.query_params.get("reset_running_requests", "false") == "true"
    return {"success": bool(await engine.reset_prefix_cache(running))}


async def _wake_up(request: Request, engine: Any) -> Mapping[str, str]:
    await engine.wake_up(request.query_params.getlist("tags") or None)
    return {"status": "asleep" if await engine.is_sleeping() else "awake"}


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
