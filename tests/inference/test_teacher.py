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

from tests.inference.conftest import assert_gone, configuration, logprobs, reference
from vime_core.api.errors import ConfigError, EngineError
from vime_core.config.sections import Config
from vime_core.devices.cpu import CpuBackend
from vime_core.inference.teacher import response_scores
from vime_core.inference.teacher_handle import TeacherHandle
from vime_core.inference.teacher_spec import teacher_spec
from vime_core.plugin.plugins import Plugins

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
        plugins = Plugins.load(["ascend"], autoload=False, environ={})
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


@pytest.mark.slow
def test_at_temperature_one(start_teacher: Callable[[Config], Any], folders: dict[str, Path]) -> None:
    assert_close(read(start_teacher(distillation(folders["B"]))), right(folders["B"], 1.0))


def test_a_text_of_the_whole_context_is_read_to_its_end(cool: Any, folders: dict[str, Path]) -> None:
    text = [3 + place % 90 for place in range(256)]
    (found,) = read(cool, [text], [1])
    assert found == pytest.approx(logprobs(reference(folders["B"]), text, 0.7), abs=1e-5)


def test_many_at_a_time_and_no_mix_up(cool: Any, folders: dict[str, Path]) -> None:
    model = reference(folders["B"])
    texts = [[(5 * number + place) % 90 + 4 for place in range(3 + number)] for number in range(12)]

    async def run() -> Any:
        client = cool.client_spec.connect()
        return await asyncio.gather(*(client.read([text, text[::-1]], [2, 1]) for text in texts))

    for text, (first, second) in zip(texts, asyncio.run(run())):
        assert first == pytest.approx(logprobs(model, text, 0.7)[1:], abs=1e-5)
        assert second == pytest.approx(logprobs(model, text[::-1], 0.7), abs=1e-5)


def test_a_text_that_it_cannot_read_is_an_error_and_hurts_no_other(cool: Any) -> None:
    with pytest.raises(EngineError, match=r"request .*-1: .*1000"):
        read(cool, [list(TEXTS[0]), [4, 1000]], [4, 1])
    with pytest.raises(EngineError, match="no token before position 0 of 3"):
        read(cool, [list(TEXTS[1])], [0])
    assert len(read(cool)) == len(TEXTS)


def test_whoever_gives_up_leaves_nothing_running(cool: Any) -> None:
    async def run() -> None:
        client = cool.client_spec.connect()
        texts = [[4 + number % 90] * 250 for number in range(64)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.read(texts, [1] * 64), 0.01)
        assert len(await client.read(TEXTS, STARTS)) == len(TEXTS)
        assert await cool.actor.abort.remote() == 0

    asyncio.run(run())


@pytest.mark.slow
def test_it_ends_and_says_so(start_teacher: Callable[[Config], Any], folders: dict[str, Path]) -> None:
    handle = start_teacher(distillation(folders["B"]))
    psutil.Process(handle.pid).kill()
    with pytest.raises(EngineError, match=r"its process did not answer: .*teacher\.log"):
        read(handle)
    other = start_teacher(distillation(folders["B"]))
    other.shutdown()
    other.shutdown()
    assert_gone([other.pid])


@pytest.mark.slow
def test_a_teacher_that_cannot_start_says_why(
    start_teacher: Callable[[Config], Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    values = json.loads((folders["B"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"num_attention_heads": 3}))
    with pytest.raises(EngineError, match="teacher did not start"):
        start_teacher(distillation(tmp_path))


# without an engine -------------------------------------------------------------------------------------------
def flat(ids: list[int], scores: list[float]) -> Any:
    return SimpleNamespace(token_ids=ids, logprobs=scores)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "asked for log-probs of 3 tokens, got those of 0"),
        (flat([], []), "got those of 0"),
        (flat([5, 6], [-1.0, -2.0]), "got those of 2"),
        (flat([5, 7, 6], [-1.0, -2.0, -3.0]), "got those of 3"),
        (flat([5, 6, 7], [-1.0, -2.0, float("-inf")]), "log-prob -inf at response token 1"),
        (flat([5, 6, 7], [-1.0, float("nan"), -3.0]), "log-prob nan at response token 0"),
    ],
)
def test_missing_positions_are_an_error(given: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        response_scores("r", [4, 5, 6, 7], 2, given)


def test_only_the_response_is_kept() -> None:
    given = flat([5, 6, 7], [float("-inf"), -2.0, -3.0])  # what the prompt itself is worth does not matter
    assert response_scores("r", [4, 5, 6, 7], 2, given).tolist() == [-2.0, -3.0]
    assert response_scores("r", [4, 5, 6, 7], 4, given).dtype == np.float32
    assert len(response_scores("r", [4, 5, 6, 7], 4, given)) == 0


def test_what_it_is_started_with(folders: dict[str, Path]) -> None:
    spec = teacher_spec(distillation(folders["B"], 0.7), CpuBackend())
    assert (spec.name, spec.model, spec.temperature) == ("teacher", str(folders["B"]), 0.7)
    assert spec.arguments["max_model_len"] == 257
    with pytest.raises(ConfigError, match="--opd-type engine needs --opd-teacher-model FOLDER"):
        teacher_spec(configuration(), CpuBackend())
