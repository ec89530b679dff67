"""Engines of other kinds: mixture of experts, two workers, chunked prefill; and the end of a killed one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.inference.conftest import FolderTrainer, assert_gone, configuration, greedy, logprobs, reference
from vime_core.api.errors import EngineError, SyncError
from vime_core.api.rollout import GenerateReply, GenerateRequest, SamplingParams
from vime_core.weights.transports.gloo import GlooSync
from vime_core.weights.transports.shared_memory import SharedMemorySync

pytestmark = pytest.mark.slow

PROMPTS = ([5, 6, 14, 7], [40, 41, 42])


def generate(engines: Any, prompts: list[list[int]], **params: Any) -> list[GenerateReply]:
    seeds = params.pop("seeds", ())
    chosen = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **params})

    async def run() -> list[GenerateReply]:
        client = engines.client_spec.connect()
        requests = [GenerateRequest((f"r{i}",), p, chosen, seeds=seeds[i : i + 1]) for i, p in enumerate(prompts)]
        try:
            return [replies[0] for replies in await asyncio.gather(*map(client.generate, requests))]
        finally:
            await client.close()

    return asyncio.run(run())


def answers(engines: Any) -> list[list[int]]:
    return [reply.tokens for reply in generate(engines, list(PROMPTS), temperature=0.0)]


def follow(engines: Any, trainer: Any, folders: dict[str, Path], turns: str, sync_class: Any) -> None:
    """Sync to each folder of ``turns``; the engine's greedy answers are the reference's every time."""
    sync = sync_class(engines.config)
    sync.connect(trainer, engines)
    seen = []
    for turn in turns:
        trainer.load(folders[turn])
        version = engines.versions()[0] + 1
        receipt = sync.push(version)
        seen.append(answers(engines))
        assert seen[-1] == [greedy(reference(folders[turn]), prompt, 8) for prompt in PROMPTS], f"version {version}"
        assert receipt.canary_gap < 1e-5
    assert seen[0] != seen[1]
    sync.close()
    trainer.close()


class RemoteTrainer:
    """The reference trainer in a process of its own, as a driver sees it."""

    def __init__(self, folder: Path, config: Any) -> None:
        import ray

        ray.cloudpickle.register_pickle_by_value(sys.modules[FolderTrainer.__module__])
        self.actor = ray.remote(FolderTrainer).remote(folder, config)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import ray

        return lambda *arguments: ray.get(getattr(self.actor, name).remote(*arguments), timeout=60)


def test_experts_follow_every_update(start_engines: Callable[..., Any], moe_folders: dict[str, Path]) -> None:
    engines = start_engines(configuration(), moe_folders["A"])
    follow(engines, FolderTrainer(moe_folders["A"], engines.config), moe_folders, "BAB", SharedMemorySync)
    engines.shutdown()


def test_a_head_that_is_the_embedding_follows_it(
    start_engines: Callable[..., Any], tied_folders: dict[str, Path]
) -> None:
    engines = start_engines(configuration(), tied_folders["A"])
    follow(engines, FolderTrainer(tied_folders["A"], engines.config), tied_folders, "BAB", SharedMemorySync)
    engines.shutdown()


def test_a_load_that_fails_half_way_leaves_an_engine_that_refuses_until_the_next_push(
    start_engines: Callable[..., Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    """A checkpoint without safetensors: names cannot be checked beforehand. Nobody keeps the weights of before."""
    import torch

    for file in folders["A"].iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path)
    torch.save(reference(folders["A"]).state_dict(), tmp_path / "pytorch_model.bin")
    engines = start_engines(configuration(), tmp_path)
    trainer = FolderTrainer(folders["B"], engines.config)
    sync = SharedMemorySync(engines.config)
    sync.connect(trainer, engines)
    sync.push(1)
    before = answers(engines)
    assert before == [greedy(trainer.model, prompt, 8) for prompt in PROMPTS]
    trainer.load(folders["A"])
    taken = trainer.tensors.pop("model.layers.1.mlp.down_proj.weight")
    with pytest.raises(SyncError, match=r"no tensor reached: .*layers\.1\.mlp\.down_proj.* weights are discarded"):
        sync.push(2)
    with pytest.raises(EngineError, match="engine 0 has loaded weights version 2 in part: it refuses requests until"):
        answers(engines)
    trainer.tensors["model.layers.1.mlp.down_proj.weight"] = taken
    sync.push(3)
    assert answers(engines) == [greedy(trainer.model, prompt, 8) for prompt in PROMPTS] != before
    assert engines.versions() == [3]
    trainer.close()
    engines.shutdown()


def test_a_model_that_vllm_does_not_know_is_named(start_engines: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 97, "model_type": "unheard_of"}')
    with pytest.raises(EngineError, match=r"(?s)engine 0 did not start.*unheard_of"):
        start_engines(configuration(), tmp_path)


def test_two_workers_follow_every_update_and_end_with_their_engine(
    start_engines: Callable[..., Any], folders: dict[str, Path]
) -> None:
    engines = start_engines(configuration(tensor_parallel=2), folders["A"])
    assert engines.workers == [2]
    follow(engines, FolderTrainer(folders["A"], engines.config), folders, "BA", SharedMemorySync)
    follow(engines, RemoteTrainer(folders["A"], engines.config), folders, "BA", GlooSync)
    actor = psutil.Process(engines.pids[0])
    family = [actor.pid, *(child.pid for child in actor.children(recursive=True))]
    assert len(family) >= 3
    os.kill(actor.pid, signal.SIGKILL)
    assert_gone(family)
    with pytest.raises(EngineError, match="engine 0"):
        engines.health()
    with pytest.raises(EngineError, match=r"engine actor|engine's process"):
        generate(engines, list(PROMPTS))


def test_a_seed_survives_a_prompt_that_is_read_in_pieces(
    start_engines: Callable[..., Any], folders: dict[str, Path]
) -> None:
    prompts = [[5 + (i * j) % 80 for j in range(1, 61)] for i in range(1, 5)]
    whole = start_engines(configuration(), folders["A"])
    right = generate(whole, prompts, seeds=(1, 2, 3, 4))
    whole.shutdown()
    config = configuration()
    config = type(config)(
        **{**config.__dict__, "vllm": {**config.vllm, "max_num_batched_tokens": 16, "max_num_seqs": 4}}
    )
    pieces = start_engines(config, folders["A"])
    replies = generate(pieces, prompts, seeds=(1, 2, 3, 4))
    assert [reply.tokens for reply in replies] == [reply.tokens for reply in right]
    trainer = FolderTrainer(folders["A"], config)
    for prompt, reply in zip(prompts, replies):
        assert reply.logprobs == pytest.approx(logprobs(trainer.model, prompt + reply.tokens)[59:], abs=1e-5)
    trainer.close()
    pieces.shutdown()
