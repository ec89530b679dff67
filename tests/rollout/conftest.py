"""A scripted client and the pieces around it. The engine alone is scripted; tokenizer, data and rewards are real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vime_core.api.errors import EngineError
from vime_core.api.reward import Score, Unscored
from vime_core.api.rollout import GenerateReply, GenerateRequest, GenerationClient
from vime_core.api.sample import Group, Sample, Status
from vime_core.config.sections import Config, DataSection, ModelSection, ObserveSection, RolloutSection

Script = Callable[[GenerateRequest, int], Any]


@dataclass
class ScriptedClient(GenerationClient):
    """``script(request, number of the call)`` gives the text of each continuation, or an exception, or seconds to hang.

    Requests that hang end at an abort with what they have (nothing), as an engine's would.
    """

    tokenizer: Any
    script: Script
    version: int = 0
    finish: str = "stop"
    calls: list[GenerateRequest] = field(default_factory=list)
    aborts: int = 0
    running: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        self._stop = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        self.calls.append(request)
        answer = self.script(request, len(self.calls) - 1)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, float):
                await asyncio.wait_for(self._stop.wait(), answer)
                return [GenerateReply(id, [], [], [], "abort") for id in request.ids]
            texts = [answer] * len(request.ids) if isinstance(answer, str) else answer
            return [self.reply(id, text) for id, text in zip(request.ids, texts, strict=True)]
        finally:
            self.running -= 1

    def reply(self, id: str, text: str) -> GenerateReply:
        tokens = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        return GenerateReply(id, tokens, [-0.25] * len(tokens), [self.version] * len(tokens), self.finish)

    async def abort(self) -> None:
        self.aborts += 1
        self._stop.set()
        await asyncio.sleep(0)
        self._stop = asyncio.Event()

    async def close(self) -> None:
        return None


class DeadClient(ScriptedClient):
    async def abort(self) -> None:
        raise EngineError("engine 0 refuses connections")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer of the addition task (one token a character) and a model configuration."""
    from vime_cli.quickstart.addition import build_tokenizer

    path = tmp_path_factory.mktemp("model")
    build_tokenizer().save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3", "max_position_embeddings": 64}))
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Any:
    from vime_core.data.tokenizer import load_tokenizer

    return load_tokenizer(folder)


@pytest.fixture
def client(tokenizer: Any) -> Callable[..., ScriptedClient]:
    def make(script: Script | str = "12", dead: bool = False, **more: Any) -> ScriptedClient:
        fixed = script if callable(script) else lambda request, call: script
        return (DeadClient if dead else ScriptedClient)(tokenizer, fixed, **more)

    return make


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> Callable[..., Config]:
    """A run on ``rows`` sums, ``rollout`` fields by keyword."""

    def make(rows: int = 8, **rollout: Any) -> Config:
        path = tmp_path / f"sums-{rows}.jsonl"
        path.write_text("".join(json.dumps({"q": f"{i:02d}+01=", "a": f"{i + 1:02d}"}) + "\n" for i in range(rows)))
        values = {"rollout_batch_size": 4, "n_samples_per_prompt": 2, "rollout_max_response_len": 6, "reward": "exact"}
        return Config(
            model=ModelSection(hf_checkpoint=str(folder)),
            data=DataSection(prompt_data=[str(path)], input_key="q", label_key="a"),
            rollout=RolloutSection(**(values | rollout)),
            observe=ObserveSection(),
        )

    return make


@pytest.fixture
def group() -> Callable[..., Group]:
    """A finished group with these rewards (numbers, Score or Unscored)."""

    def make(rewards: Sequence[Any], id: int = 0, tokens: int = 3, version: int = 1) -> Group:
        samples = []
        for index, reward in enumerate(rewards):
            sample = Sample(id, id, id * 100 + index, index, "1+1=", [4, 14, 4, 15], label="2")
            sample.append_model([6] * tokens, [-0.5] * tokens, [version] * tokens)
            sample.status, sample.response = Status.COMPLETED, "2" * tokens
            sample.reward = reward if isinstance(reward, Score | Unscored) else Score(float(reward))
            samples.append(sample)
        return Group(id, samples)

    return make
