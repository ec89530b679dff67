"""Experts that a real engine says it chose are those that Hugging Face's router chooses on the same tokens, whatever
way the tokens came into the engine's batches."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inference.conftest import FolderTrainer, configuration, needs_routed_experts, reference
from vime_core.api.rollout import GenerateReply, GenerateRequest, SamplingParams
from vime_core.api.streams import ROUTING
from vime_core.config.sections import Config
from vime_core.weights.transports.shared_memory import SharedMemorySync

pytestmark = [pytest.mark.slow, needs_routed_experts]

#: several blocks long, so that its second request finds it in the prefix cache; longer than a step's chunk below
LONG = [3 + (7 * place) % 90 for place in range(150)]
PROMPTS = ([5, 6, 14, 7], [40], LONG, [10, 11, 12, 13, 14, 15, 16])


def routed(transport: str = "direct", tensor_parallel: int = 1, **vllm: Any) -> Config:
    config = configuration(tensor_parallel=tensor_parallel, transport=transport)
    config = config.replace("train", use_rollout_routing_replay=True)
    return dataclasses.replace(config, vllm={**config.vllm, **vllm})


def sample(engines: Any, requests: list[GenerateRequest], meanwhile: Callable[[Any], Any] | None = None) -> Any:
    async def run() -> list[GenerateReply]:
        client = engines.client_spec.connect()
        try:
            going = asyncio.gather(*(client.generate(request) for request in requests))
            if meanwhile is not None:
                await meanwhile(client)
            return [reply for replies in await going for reply in replies]
        finally:
            await client.close()

    return asyncio.run(run())


def requests(name: str, n: int = 2, length: int = 9) -> list[GenerateRequest]:
    """One for each prompt, each with ``n`` continuations of its own length."""
    made = []
    for number, prompt in enumerate(PROMPTS):
        ids = tuple(f"{name}.{number}.{i}" for i in range(n))
        params = SamplingParams(max_tokens=length + number, ignore_eos=True)
        made.append(GenerateRequest(ids, prompt, params, session=ids[0]))
    return made


def chosen(model: Any, tokens: list[int], topk: int = 2) -> np.ndarray:
    """[len(tokens) - 1, layers, topk]: Hugging Face's own choice."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([tokens]), output_router_logits=True).router_logits
    layers = [one.reshape(-1, one.shape[-1]).topk(topk, -1).indices for one in logits]
    return torch.stack(layers, 1)[:-1].numpy()


def assert_right(model: Any, asked: list[GenerateRequest], replies: list[GenerateReply]) -> None:
    prompts = [request.tokens for request in asked for _ in request.ids]
    assert len(replies) == len(prompts)
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.streams[ROUTING].dtype == np.uint8
        np.testing.assert_array_equal(reply.streams[ROUTING], chosen(model, [*prompt, *reply.tokens]))


@pytest.mark.parametrize("transport", ["direct", "router"])
def test_concurrent_requests_and_cached_prompts(
    start_engines: Any, moe_folders: dict[str, Path], transport: str
) -> None:
    model = reference(moe_folders["A"])
    engines = start_engines(routed(transport), moe_folders["A"])
    for name in ("first", "again"):
        asked = requests(name)
        replies = sample(engines, asked)
        assert_right(model, asked, replies)
    assert max(reply.cached_tokens for reply in replies) >= 128
    engines.shutdown()


def test_two_workers(start_engines: Any, moe_folders: dict[str, Path]) -> None:
    engines = start_engines(routed(tensor_parallel=2), moe_folders["A"])
    asked = requests("tp")
    assert_right(reference(moe_folders["A"]), asked, sample(engines, asked))
    engines.shutdown()


def test_chunks_and_preemption(start_engines: Any, moe_folders: dict[str, Path]) -> None:
    """Steps of 32 tokens; room for 7 blocks of 128 tokens, which 8 requests fill and then need twice."""
    small = routed(max_num_batched_tokens=32, max_num_seqs=8, kv_cache_memory_bytes=1 << 20)
    engines = start_engines(small, moe_folders["A"])
    params = SamplingParams(max_tokens=120, ignore_eos=True)
    asked = [GenerateRequest((f"small.{i}",), LONG[i : i + 60], params) for i in range(8)]
    assert_right(reference(moe_folders["A"]), asked, sample(engines, asked))
    engines.shutdown()


def test_updates_and_aborts(start_engines: Any, moe_folders: dict[str, Path]) -> None:
    """Nothing of the old weights is served to later requests; what ran meanwhile keeps the rows that it was sampled
    with; an aborted request has the rows of the tokens it has."""
    engines = start_engines(routed(), moe_folders["A"])
    trainer = FolderTrainer(moe_folders["A"], engines.config)
    sync = SharedMemorySync(engines.config)
    sync.connect(trainer, engines)
    old = trainer.model
    sample(engines, requests("old"))
    trainer.load(moe_folders["B"])

    async def update(client: Any) -> None:
        await asyncio.sleep(0.1)
        await asyncio.to_thread(sync.push, 1)

    prompt = LONG[:20]
    (reply,) = sample(engines, [GenerateRequest(("x",), prompt, SamplingParams(200, ignore_eos=True))], update)
    assert set(reply.versions) == {0, 1}
    # the token before the first one of the new weights is routed again to sample it; the row is the one that did
    boundary = len(prompt) + reply.versions.index(1) - 1
    tokens = [*prompt, *reply.tokens]
    np.testing.assert_array_equal(reply.streams[ROUTING][:boundary], chosen(old, tokens)[:boundary])
    np.testing.assert_array_equal(reply.streams[ROUTING][boundary:], chosen(trainer.model, tokens)[boundary:])
    asked = requests("new")
    assert_right(trainer.model, asked, sample(engines, asked))

    async def abort(client: Any) -> None:
        await asyncio.sleep(0.1)
        await client.abort()

    asked = requests("abort", length=60)
    replies = sample(engines, asked, abort)
    assert "abort" in {reply.finish for reply in replies}
    assert_right(trainer.model, asked, replies)
    sync.close()
    trainer.close()
    engines.shutdown()


def test_an_engine_that_is_not_asked_returns_none(start_engines: Any, moe_folders: dict[str, Path]) -> None:
    engines = start_engines(configuration(), moe_folders["A"])
    assert all(reply.streams == {} for reply in sample(engines, requests("off")))
    engines.shutdown()
