"""A stream that the core has never heard of: declared by a plugin's rollout, read by its algorithm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vime_core.algorithms.objective import Objective
from vime_core.algorithms.prepare import prepare_step
from vime_core.algorithms.reinforce import Reinforce
from vime_core.api.errors import EngineError
from vime_core.api.rollout import GenerateReply
from vime_core.api.streams import TokenStream
from vime_core.batch.step_batch import StepBatch
from vime_core.config.sections import Config
from vime_core.data.codec import sample_from_json, sample_to_json
from vime_core.inference.columns import ReplyColumns
from vime_core.pipeline.checks import facts_of
from vime_core.plugin.plugins import Plugins
from vime_core.rollout.worker import RolloutWorker

PLUGIN = """
from vime_core.api.sample import Status
from vime_core.api.streams import TokenStream
from vime_core.rollout.generate import Generate

DOUBT = TokenStream("doubt", "float32", "response", "doubts", "doubting")


class Doubting(Generate):
    streams = (DOUBT,)
    forgets = False

    async def generate(self, samples, client, params):
        for sample in await super().generate(samples, client, params):
            tokens = list(sample.response_tokens)
            sample.reset()
            values = {} if self.forgets else {DOUBT: [token / 8 for token in tokens]}
            sample.append_model(tokens, [-0.25] * len(tokens), [0] * len(tokens), values)
            sample.append_observation([1])
            sample.status = Status.COMPLETED
        return list(samples)


class Forgetful(Doubting):
    forgets = True
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plugin") / "doubts.py"
    path.write_text(PLUGIN)
    return path


def made_by(config: Callable[..., Config], client: Callable[..., Any], rollout: str) -> Any:
    async def run() -> Any:
        made = config(rollout_function=rollout)
        worker = RolloutWorker(made, Plugins.load(autoload=False, environ={}), client())
        try:
            return await worker.rollout(0)
        finally:
            await worker.close()

    return asyncio.run(run())


class Cautious(Reinforce):
    name = "cautious"
    needs = frozenset({"reward", "doubt"})

    def advantages(self, batch: StepBatch, options: Mapping[str, Any]) -> torch.Tensor:
        return batch.t("doubt")


def test_the_algorithm_finds_the_plugins_column(
    plugin: Path, config: Callable[..., Config], client: Callable[..., Any]
) -> None:
    result = made_by(config, client, f"{plugin}:Doubting")
    batch, algorithm = result.batch, Cautious()
    prepared = prepare_step(Objective(algorithm, algorithm.defaults, "token_mean"), batch)
    sampled = torch.from_numpy(batch.mask)
    starts = np.repeat(batch.token_starts[:-1] + batch.total_lengths - batch.response_lengths, batch.response_lengths)
    positions = starts + np.arange(len(sampled)) - np.repeat(batch.response_starts[:-1], batch.response_lengths)
    expected = torch.from_numpy(batch.tokens[positions] / 8).float()
    assert torch.equal(prepared.advantage[sampled], expected[sampled])
    assert batch.t("doubt")[~sampled].isnan().all()
    first = expected[: batch.response_lengths[0] - 1].tolist()
    assert result.samples[0]["doubt"] == first


def test_a_sample_that_lacks_it_is_named(
    plugin: Path, config: Callable[..., Config], client: Callable[..., Any]
) -> None:
    with pytest.raises(EngineError, match=r"doubting: group \d+ sample 0 .* has doubts of 0 tokens"):
        made_by(config, client, f"{plugin}:Forgetful")


def test_the_rules_know_that_the_batch_will_have_it(plugin: Path, config: Callable[..., Config]) -> None:
    facts = facts_of(config(rollout_function=f"{plugin}:Doubting"), Plugins.load(autoload=False, environ={}))
    assert facts.supplies is not None
    assert "doubt" in facts.supplies


def test_replies_and_checkpoints_carry_it(group: Callable[..., Any]) -> None:
    mine = TokenStream("mine", "int32", "response", "own values", "a test", ("pair",), 7)
    rows = np.arange(6, dtype=np.int32).reshape(3, 2)
    replies = [
        GenerateReply(id, [1] * 3, [-1.0] * 3, [0] * 3, "stop", 0, {mine: rows + n}) for n, id in enumerate("ab")
    ]
    second = ReplyColumns.pack(replies).unpack()[1]
    np.testing.assert_array_equal(second.streams[mine], rows + 1)
    sample = group([1.0], tokens=0).samples[0]
    sample.append_model(second.tokens, second.logprobs, second.versions, second.streams)
    sample.append_observation([5])
    sample.append_model([2], [-1.0], [0], {mine: rows[:1]})
    back = sample_from_json(json.loads(json.dumps(sample_to_json(sample))))
    assert back.streams[mine].tolist() == [*(rows + 1).tolist(), [7, 7], [0, 1]]
    sample.append_model([2], [-1.0], [0])
    with pytest.raises(ValueError, match="own values of 5 of the 6 tokens before these"):
        sample.append_model([2], [-1.0], [0], {mine: rows[:1]})
