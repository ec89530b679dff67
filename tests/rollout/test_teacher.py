"""The teacher in the rollout: what it is asked, what is kept, and what becomes of a group that it cannot read."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vime_core.api.errors import ConfigError, DeadlineError, EngineError
from vime_core.api.sample import Sample
from vime_core.api.streams import TEACHER_LOGP
from vime_core.config.sections import Config
from vime_core.data.codec import sample_from_json, sample_to_json
from vime_core.plugin.plugins import Plugins
from vime_core.rollout.convert import to_batch
from vime_core.rollout.teacher import TeacherScorer
from vime_core.rollout.teacher_check import check_teacher, difference
from vime_core.rollout.worker import RolloutWorker


class Arithmetic:
    """Finds token ``t`` at place ``p`` of a text -(t + p / 1000) likely; or does as ``fault`` says."""

    def __init__(self, fault: Callable[[list[list[float]]], Any] = lambda scores: scores) -> None:
        self.fault, self.calls, self.running, self.most = fault, 0, 0, 0

    async def read(self, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> Any:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            answer = self.fault([right(text, start) for text, start in zip(texts, starts)])
            if isinstance(answer, float):
                await asyncio.sleep(answer)
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.running -= 1


def right(text: Sequence[int], start: int) -> list[float]:
    return [-(token + place / 1000) for place, token in enumerate(text) if place >= start]


def two_turns() -> Sample:
    sample = Sample(0, 0, 0, 0, "1+1=", [4, 14, 4, 15])
    sample.append_model([6, 7], [-0.5, -0.5], [1, 1])
    sample.append_observation([8, 9, 10])
    sample.append_model([11], [-0.25], [2])
    return sample


def scorer(teacher: Any, timeout: float = 60.0, groups: int = 4) -> TeacherScorer:
    made = TeacherScorer(timeout, groups)
    made.attach(teacher)
    return made


def test_all_turns_are_read_and_observations_are_left_out() -> None:
    sample, teacher = two_turns(), Arithmetic()
    asking = scorer(teacher)
    asyncio.run(asking.score([sample]))
    expected = right(sample.tokens, 4)
    assert [value for value, mask in zip(sample.streams[TEACHER_LOGP], sample.loss_mask) if mask] == pytest.approx(
        [value for value, mask in zip(expected, sample.loss_mask) if mask]
    )
    assert [math.isnan(value) for value in sample.streams[TEACHER_LOGP]] == [False, False, True, True, True, False]
    asyncio.run(asking.score([sample]))
    assert teacher.calls == 1
    sample.append_model([12], [-0.25], [2])
    assert not sample.has_stream(TEACHER_LOGP)
    asyncio.run(asking.score([sample]))
    assert sample.streams[TEACHER_LOGP][-1] == pytest.approx(right(sample.tokens, 4)[-1])
    sample.reset()
    assert sample.streams == {}


def test_it_survives_a_checkpoint() -> None:
    sample = two_turns()
    asyncio.run(scorer(Arithmetic()).score([sample]))
    again = sample_from_json(sample_to_json(sample))
    assert np.array_equal(again.streams[TEACHER_LOGP], sample.streams[TEACHER_LOGP], equal_nan=True)
    assert again.has_stream(TEACHER_LOGP)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda scores: [scores[0][:-1]], "5 for 6 response tokens"),
        (lambda scores: [[*scores[0][:-1], math.nan]], "response token 5 is nan"),
        (lambda scores: [[-math.inf, *scores[0][1:]]], "response token 0 is -inf"),
        (lambda scores: EngineError("its process is gone"), "its process is gone"),
    ],
)
def test_what_is_missing_is_an_error_and_never_a_number(fault: Any, message: str) -> None:
    sample = two_turns()
    with pytest.raises(EngineError, match=message):
        asyncio.run(scorer(Arithmetic(fault)).score([sample]))
    assert sample.streams == {}


def test_a_slow_teacher_is_given_up() -> None:
    with pytest.raises(DeadlineError, match=r"0\.05 s for group 0 \(--generate-timeout-secs\)"):
        asyncio.run(scorer(Arithmetic(lambda scores: 30.0), timeout=0.05).score([two_turns()]))


def test_groups_wait_their_turn_and_the_time_is_counted() -> None:
    teacher = Arithmetic()
    asking = scorer(teacher, groups=2)

    async def run() -> None:
        await asyncio.gather(*(asking.score([two_turns()]) for _ in range(8)))

    asyncio.run(run())
    assert (teacher.calls, teacher.most) == (8, 2)
    assert asking.take_seconds() > 0
    assert asking.take_seconds() == 0


def test_a_sample_without_a_response_asks_for_nothing() -> None:
    teacher = Arithmetic()
    asyncio.run(scorer(teacher).score([Sample(0, 0, 0, 0, "1+1=", [4, 14, 4, 15])]))
    assert teacher.calls == 0


def test_a_batch_without_the_teachers_word_is_refused(group: Callable[..., Any]) -> None:
    with pytest.raises(EngineError, match=r"group 0 sample 0 .* has log-probs of the teacher of 0 tokens"):
        to_batch([group([1.0])], streams=[TEACHER_LOGP])


# the whole worker --------------------------------------------------------------------------------------------
def distilling(config: Config, **rollout: Any) -> Config:
    config = config.replace("rollout", **rollout)
    pure = {"advantage_estimator": "opd"} if config.rollout.reward is None else {"use_opd": True}
    return config.replace("algorithm", opd_type="engine", **pure)


def roll(config: Config, client: Any, teacher: Any) -> Any:
    async def run() -> Any:
        worker = RolloutWorker(config, Plugins.load(autoload=False, environ={}), client)
        assert worker.teacher is not None
        worker.teacher.attach(teacher)
        try:
            return await worker.rollout(0), worker.ledger.metrics()
        finally:
            await worker.close()

    return asyncio.run(run())


@pytest.mark.parametrize("reward", ["exact", None], ids=["reward", "no-reward"])
def test_the_batch_has_a_column(config: Callable[..., Config], client: Callable[..., Any], reward: str | None) -> None:
    result, _ = roll(distilling(config(), reward=reward), client(), Arithmetic())
    batch = result.batch
    starts = batch.total_lengths - batch.response_lengths
    texts = [batch.tokens[at : at + length] for at, length in zip(batch.token_starts, batch.total_lengths)]
    expected = np.concatenate([right(text, start) for text, start in zip(texts, starts)])
    axis, column = batch.extra["teacher_logp"]
    assert (axis, column.dtype) == ("response", np.float32)
    assert column == pytest.approx(expected)
    assert np.isnan(batch.reward).all() == (reward is None)
    assert ("rollout/raw_reward" in result.metrics) == (reward is not None)
    assert result.metrics["perf/teacher_time"] > 0
    assert result.samples[0]["teacher_logp"] == pytest.approx(expected[: batch.response_lengths[0]])


def test_a_run_without_a_teacher_has_no_column(config: Callable[..., Config], client: Callable[..., Any]) -> None:
    async def run() -> Any:
        worker = RolloutWorker(config(), Plugins.load(autoload=False, environ={}), client())
        assert worker.teacher is None
        return await worker.rollout(0)

    result = asyncio.run(run())
    assert dict(result.batch.extra) == {}
    assert "perf/teacher_time" not in result.metrics


def test_a_group_is_tried_again_and_then_failed(config: Callable[..., Config], client: Callable[..., Any]) -> None:
    """The very first one asked for, every time."""
    unreadable: set[float] = set()

    def fault(scores: list[list[float]]) -> Any:
        mark = seen.pop(0)
        unreadable.add(mark) if not unreadable else None
        return EngineError("a position is missing") if mark in unreadable else scores

    class Marking(Arithmetic):
        async def read(self, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> Any:
            seen.append(tuple(texts[0][: starts[0]]))
            return await super().read(texts, starts)

    seen: list[Any] = []
    result, ledger = roll(distilling(config()), client(), Marking(fault))
    assert result.metrics["rollout/requeued/retried"] == 1
    assert (ledger["rollout/groups/trained"], ledger["rollout/groups/failed"]) == (4, 1)
    assert {row["reason"] for row in result.samples if row["outcome"] == "failed"} == {"teacher: a position is missing"}
    assert np.isfinite(result.batch.extra["teacher_logp"][1]).all()


def test_a_dead_teacher_ends_the_run_by_name(config: Callable[..., Config], client: Callable[..., Any]) -> None:
    teacher = Arithmetic(lambda scores: EngineError("its process did not answer"))
    with pytest.raises(EngineError, match=r"4 failed, 0 unscored.*teacher: its process did not answer"):
        roll(distilling(config()), client(), teacher)


# vocabulary --------------------------------------------------------------------------------------------------
def test_the_students_tokens_must_be_the_teachers() -> None:
    ours = {"a": 0, "b": 1, "c": 2}
    assert difference(ours, {**ours, "d": 3}) == ""
    assert difference(ours, {"a": 0, "c": 1, "b": 2}) == "'b' is id 1, and id 2 to the teacher (2 of 3 tokens differ)"
    assert difference(ours, {"a": 0, "b": 1, "x": 2}) == "id 2 is 'c', the teacher has 'x' there (1 of 3 tokens differ)"
    assert difference(ours, {"a": 0, "b": 1}) == "id 2 is 'c', the teacher has no such token (1 of 3 tokens differ)"


def test_teachers_are_checked_before_anything_starts(
    config: Callable[..., Config], folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    given = distilling(config())
    check_teacher(given.replace("model", opd_teacher_model=str(other)))
    check_teacher(given.replace("model", opd_teacher_model="{stages.warmup.hf}"))
    with pytest.raises(ConfigError, match=r"needs --opd-teacher-model FOLDER, .* given is None"):
        check_teacher(given)
    file = other / "tokenizer.json"
    file.write_text(file.read_text().replace('"7"', '"~"'))
    with pytest.raises(ConfigError, match=r"reads other token ids .*: id \d+ is '7', the teacher has '~' there"):
        check_teacher(given.replace("model", opd_teacher_model=str(other)))


def test_the_longest_sample_must_fit(config: Callable[..., Config], folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "short")
    (tmp_path / "short" / "config.json").write_text('{"model_type": "qwen3", "max_position_embeddings": 32}')
    given = distilling(config()).replace("model", opd_teacher_model=str(tmp_path / "short"))
    with pytest.raises(ConfigError, match="reads 32 tokens, a sample may have 64: lower --rollout-max-context-len"):
        check_teacher(given)
    check_teacher(given.replace("rollout", rollout_max_context_len=32))
