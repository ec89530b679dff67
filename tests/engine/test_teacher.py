"""The teacher: a second engine that reads what the student sampled, held against Hugging Face."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from tests.engine.conftest import assert_gone, configuration, logprobs, reference
from vime_core.config.sections import Config
from vime_core.devices.cpu.backend import CpuBackend
from vime_core.engine.teacher import response_scores
from vime_core.engine.teacher_handle import TeacherHandle
from vime_core.engine.teacher_spec import teacher_spec
from vime_core.errors import ConfigError, EngineError
from vime_core.plugins import Plugins

TEXTS = ([5, 6, 14, 7, 40, 41, 9], [10, 11, 12], list(range(4, 90)) + list(range(20, 60)))
STARTS = (4, 1, 17)


def distillation(folder: Path, temperature: float = 1.0, **vllm: Any) -> Config:
    config = configuration().replace("model", opd_teacher_model=str(folder))
    config = config.replace("rollout", rollout_temperature=temperature)
    return Config(**{**vars(config), "vllm": {**config.vllm, **vllm}})


@pytest.fixture(scope="module")
def start_teacher(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Config], Any]]:
    started = []

    def start(config: Config) -> TeacherHandle:
        plugins = Plugins.load(autoload=False, environ={})
        handle = TeacherHandle.launch(config, CpuBackend(), plugins, tmp_path_factory.mktemp("logs"))
        started.append(handle)
        handle.wait()
        return handle

    yield start
    for handle in started:
        handle.shutdown()


@pytest.fixture(scope="module")
def cool(start_teacher: Callable[[Config], Any], folders: dict[str, Path]) -> Any:
    """A teacher at temperature 0.7 that takes a text in pieces of 32 tokens."""
    return start_teacher(distillation(folders["B"], 0.7, max_num_batched_tokens=32, max_num_seqs=4))


def read(handle: Any, texts: Any = TEXTS, starts: Any = STARTS) -> list[list[float]]:
    async def run() -> Any:
        return await handle.client_spec.connect().read(texts, starts)

    return [scores.tolist() for scores in asyncio.run(run())]


def right(folder: Path, temperature: float) -> list[list[float]]:
    model = reference(folder)
    return [logprobs(model, list(text), temperature)[start - 1 :] for text, start in zip(TEXTS, STARTS)]


def assert_close(found: list[list[float]], expected: list[list[float]]) -> None:
    assert [len(scores) for scores in found] == [len(scores) for scores in expected]
    for scores, ours in zip(found, expected):
        assert scores == pytest.approx(ours, abs=1e-5)


def test_log_probs_are_hugging_faces_at_the_students_temperature(cool: Any, folders: dict[str, Path]) -> None:
    found = read(cool)
    assert_close(found, right(folders["B"], 0.7))
    raw = right(folders["B"], 1.0)
    assert max(abs(a - b) for a, b in zip(found[0], raw[0])) > 0.1
