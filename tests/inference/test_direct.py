"""One engine in a Ray actor: what it samples, what it says about it, and what a weight update does to it.

One engine serves the whole file; each test begins with the weights of folder A.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.inference.conftest import FolderTrainer, boundary_is_right, configuration, greedy, logprobs
from vime_core.api.errors import EngineError, SyncError
from vime_core.api.rollout import GenerateReply, GenerateRequest, SamplingParams
from vime_core.weights.transports.shared_memory import SharedMemorySync

PROMPTS = ([5, 6, 14, 7], [40, 41, 42], [10, 11, 12, 13, 14, 15, 16])
LENGTH = 10


@pytest.fixture(scope="module")
def engines(start_engines: Callable[..., Any], folders: dict[str, Path]) -> Any:
    return start_engines(configuration(), folders["A"])


@pytest.fixture(scope="module")
def trainer(engines: Any, folders: dict[str, Path]) -> Iterator[FolderTrainer]:
    trainer = FolderTrainer(folders["A"], engines.config)
    yield trainer
    trainer.close()


@pytest.fixture
def sync(engines: Any, trainer: FolderTrainer, folders: dict[str, Path]) -> Iterator[SharedMemorySync]:
    sync = SharedMemorySync(engines.config)
    sync.connect(trainer, engines)
    trainer.load(folders["A"])
    sync.push(next_version(engines))
    yield sync
    sync.close()


def next_version(engines: Any) -> int:
    return engines.versions()[0] + 1


def sample(engines: Any, requests: Sequence[GenerateRequest], **later: Any) -> list[list[GenerateReply]]:
    """All requests through the client that a rollout process would use."""

    async def run() -> list[list[GenerateReply]]:
        client = engines.client_spec.connect()
        try:
            return list(await asyncio.gather(*(client.generate(request) for request in requests)))
        finally:
            await client.close()

    return asyncio.run(run())


def request(name: str, tokens: list[int], n: int = 1, **params: Any) -> GenerateRequest:
    chosen = {"max_tokens": LENGTH, "ignore_eos": True, **params}
    seeds = chosen.pop("seeds", ())
    return GenerateRequest(tuple(f"{name}.{i}" for i in range(n)), tokens, SamplingParams(**chosen), seeds=seeds)


def greedy_of(engines: Any) -> list[list[int]]:
    requests = [request(f"g{i}", prompt, temperature=0.0) for i, prompt in enumerate(PROMPTS)]
    return [replies[0].tokens for replies in sample(engines, requests)]


def expected(trainer: FolderTrainer) -> list[list[int]]:
    return [greedy(trainer.model, prompt, LENGTH) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_distribution_that_was_sampled(
    sync: SharedMemorySync, engines: Any, trainer: FolderTrainer, temperature: float
) -> None:
    (replies,) = sample(engines, [request("t", PROMPTS[0], n=8, temperature=temperature)])
    for reply in replies:
        right = logprobs(trainer.model, PROMPTS[0] + reply.tokens, temperature)[len(PROMPTS[0]) - 1 :]
        assert reply.logprobs == pytest.approx(right, abs=1e-5)
        assert reply.finish == "length"
        assert set(reply.versions) == set(engines.versions())
    assert [reply.id for reply in replies] == [f"t.{i}" for i in range(8)]
    assert len({tuple(reply.tokens) for reply in replies}) > 1


def test_a_seed_repeats_its_sample_in_any_company(sync: SharedMemorySync, engines: Any) -> None:
    together = sample(engines, [request("s", PROMPTS[1], n=4, seeds=(1, 2, 3, 4))])[0]
    alone = [sample(engines, [request(f"s{seed}", PROMPTS[1], seeds=(seed,))])[0][0] for seed in (1, 2, 3, 4)]
    assert [reply.tokens for reply in together] == [reply.tokens for reply in alone]
    assert len({tuple(reply.tokens) for reply in together}) > 1


def test_two_updates_in_a_row_give_the_trainers_greedy_answers(
    sync: SharedMemorySync, engines: Any, trainer: FolderTrainer, folders: dict[str, Path]
) -> None:
    first = greedy_of(engines)
    assert first == expected(trainer)
    trainer.load(folders["B"])
    for _ in range(2):
        version = next_version(engines)
        receipt = sync.push(version)
        assert greedy_of(engines) == expected(trainer) != first
        assert engines.versions() == [version] == [receipt.version]
        assert receipt.names == len(trainer.tensors)
        assert receipt.nbytes == sum(tensor.nbytes for tensor in trainer.tensors.values())
        assert receipt.canary_gap < 1e-5
        assert [proof.digest for proof in receipt.engines] == [receipt.digest]


def refused(sync: SharedMemorySync, engines: Any, message: str) -> None:
    """A push fails with ``message``, and neither version nor answers move."""
    before = engines.versions(), greedy_of(engines)
    with pytest.raises(SyncError, match=message):
        sync.push(next_version(engines))
    assert (engines.versions(), greedy_of(engines)) == before


def test_one_wrong_byte_is_refused(
    sync: SharedMemorySync, engines: Any, trainer: FolderTrainer, folders: dict[str, Path]
) -> None:
    trainer.load(folders["B"])
    trainer.publisher.corrupt = trainer.publisher._count + 1
    refused(sync, engines, "digest")
    sync.push(next_version(engines))
    assert greedy_of(engines) == expected(trainer)


def test_missing_and_unknown_names_are_refused_by_name(
    sync: SharedMemorySync, engines: Any, trainer: FolderTrainer, folders: dict[str, Path]
) -> None:
    trainer.load(folders["B"])
    whole = dict(trainer.tensors)
    del trainer.tensors["model.layers.1.mlp.up_proj.weight"]
    refused(sync, engines, r"names missing: model\.layers\.1\.mlp\.up_proj\.weight")
    trainer.tensors = {**whole, "model.layers.7.mlp.up_proj.weight": whole["model.norm.weight"]}
    refused(sync, engines, r"names that the model does not have: model\.layers\.7\.mlp\.up_proj\.weight")
    trainer.tensors = {**whole, "model.norm.weight": whole["model.norm.weight"][:-1]}
    refused(sync, engines, r"shapes that differ: model\.norm\.weight \[63\] for \[64\]")


def test_a_canary_that_differs_leaves_the_engines_without_weights_until_the_next_push(
    sync: SharedMemorySync, engines: Any, trainer: FolderTrainer, folders: dict[str, Path]
) -> None:
    model = trainer.model  # of A, while B's bytes are sent
    trainer.load(folders["B"])
    trainer.model, right = model, trainer.model
    version = next_version(engines)
    with pytest.raises(SyncError, match=r"canary log-probs are .*; no engine serves anything until a push passes"):
        sync.push(version)
    with pytest.raises(EngineError, match=rf"engine 0 has loaded weights version {version}, which was not committed"):
        greedy_of(engines)
    trainer.model = right
    sync.push(version + 1)
    assert greedy_of(engines) == expected(trainer)


def test_an_abort_returns_what_there_is(sync: SharedMemorySync, engines: Any) -> None:
    async def run() -> list[GenerateReply]:
        client = engines.client_spec.connect()
        going = asyncio.create_task(client.generate(request("long", PROMPTS[0], n=4, max_tokens=240)))
        await asyncio.sleep(0.1)
        await client.abort()
        try:
            return await going
        finally:
            await client.close()

    replies = asyncio.run(run())
    assert {reply.finish for reply in replies} == {"abort"}
    assert all(len(reply.tokens) == len(reply.logprobs) == len(reply.versions) < 240 for reply in replies)


def test_an_update_under_running_requests_marks_the_boundary(
    sync: SharedMemorySync, engines: Any, trainer: FolderTrainer, folders: dict[str, Path]
) -> None:
    trainer.load(folders["B"])
    old, new = engines.versions()[0], next_version(engines)

    async def run() -> list[GenerateReply]:
        client = engines.client_spec.connect()
        going = asyncio.create_task(client.generate(request("inflight", PROMPTS[0], n=2, max_tokens=240)))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(sync.push, new)
        try:
            return await going
        finally:
            await client.close()

    for reply in asyncio.run(run()):
        assert len(reply.tokens) == 240
        boundary_is_right(reply, PROMPTS[0], old, new, trainer)


def test_a_prompt_that_does_not_fit_fails_alone(sync: SharedMemorySync, engines: Any) -> None:
    async def run() -> list[Any]:
        client = engines.client_spec.connect()
        requests = [request("fits", PROMPTS[0]), request("does-not", [5] * 300)]
        try:
            return await asyncio.gather(*(client.generate(r) for r in requests), return_exceptions=True)
        finally:
            await client.close()

    good, bad = asyncio.run(run())
    assert len(good[0].tokens) == LENGTH
    assert isinstance(bad, EngineError)
    assert "does-not.0" in str(bad)
