from __future__ import annotations

from typing import Any

import pytest
from vime_cli.plan.layout import Layout
from vime_cli.plan.lengths import Lengths
from vime_cli.plan.packing import packing
from vime_cli.plan.prompts import Prompts

from vime_core.api.errors import ConfigError
from vime_core.batch.plan import Packing, plan_steps
from vime_core.config.sections import Config


def _config(**train: Any) -> Config:
    config = Config().replace("rollout", rollout_batch_size=8, n_samples_per_prompt=4, rollout_max_response_len=90)
    config = config.replace("data", rollout_max_prompt_len=10)
    return config.replace("train", use_dynamic_batch_size=True, max_tokens_per_gpu=300, **train)


def test_lengths_without_a_word_are_the_longest() -> None:
    lengths = Lengths.of(_config())
    assert set(lengths.samples) == {(10, 90)}
    assert "at their longest" in lengths.source


def test_quantiles_are_filled_evenly() -> None:
    lengths = Lengths.of(_config(), Prompts.given((4,)), response=(10, 20, 90))
    responses = sorted(response for _, response in lengths.samples)
    assert responses[0] < 15
    assert responses[-1] > 75
    assert 16 <= responses[len(responses) // 2] <= 24
    assert lengths.longest == 94


def test_lengths_beyond_the_longest_sample() -> None:
    with pytest.raises(ConfigError, match="longer than the 100"):
        Lengths.of(_config(), response=(95,))


def test_nothing_says_how_long_samples_are() -> None:
    with pytest.raises(ConfigError, match="--rollout-max-response-len"):
        Lengths.of(Config())


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_micro_batches_are_those_that_training_makes(steps: int, ranks: int) -> None:
    config = _config(num_steps_per_rollout=steps)
    lengths = Lengths.of(config, Prompts.given((2, 10)), response=(10, 30, 80))
    found = packing(config, Layout(dp=ranks), lengths)
    real = plan_steps(_batch(lengths), Packing(dp_size=ranks, max_tokens=300), global_batch_size=config.global_batch)
    assert found.optimizer_steps == len(real) == steps
    assert found.micro_batches == max(step.micro_batches_per_rank for step in real)
    sums = [sum(lengths.totals[i] for i in b) for step in real for rank in step.micro_batches for b in rank]
    assert found.largest == max(sums)


def test_passes_without_gradient_may_have_a_size_of_their_own() -> None:
    for own, tokens in ((None, 300), (600, 600), (50, 100)):  # never less than the longest sample
        config = _config(log_probs_max_tokens_per_gpu=own)
        found = packing(config, Layout(), Lengths.of(config))
        assert (found.bound, found.forward) == (300, tokens)


def test_a_small_step_bounds_a_micro_batch() -> None:
    config = _config().replace("train", max_tokens_per_gpu=100_000)
    found = packing(config, Layout(), Lengths.of(config))
    assert found.bound == 32 * 100
    assert found.fill == pytest.approx(0.032)


def _batch(lengths: Lengths) -> Any:
    import numpy as np

    from vime_core.batch.step_batch import StepBatch

    responses = [response for _, response in lengths.samples]
    total, count = sum(responses), len(responses)
    return StepBatch.of(
        tokens=np.zeros(lengths.tokens, dtype=np.int64),
        total_lengths=lengths.totals,
        response_lengths=responses,
        mask=np.ones(total),
        rollout_logp=np.full(total, -1.0),
        version=np.zeros(total),
        reward=[0.0] * count,
        group=[i // 4 for i in range(count)],
        rollout=range(count),
        truncated=[False] * count,
    )
