"""How long a rollout is waited for: by lengths before anything was measured, then by the slowest step; a flag wins."""

from __future__ import annotations

import pytest

from vime_core.config import Config
from vime_core.data import GenerationBound, generation_deadline
from vime_core.pipeline.rollout_deadline import RolloutDeadline


def config(**rollout: object) -> Config:
    given = {"rollout_batch_size": 8, "n_samples_per_prompt": 4, "rollout_max_response_len": 1000} | rollout
    return Config().replace("rollout", **given)


def test_the_first_step_is_bounded_by_lengths_and_says_so() -> None:
    assert generation_deadline(config()) == 600 + 1000 / 2
    limit = RolloutDeadline(config()).of_step()
    assert limit.seconds == 2 * (1100 + 32 / 32 * 60)
    assert limit.why == (
        "2 times 1100 s, for 32 samples of at most 1000 tokens, 512 at a time, at 2 tokens/s each, and 60 s for "
        "rewards; no speed was measured yet; --generate-timeout-secs sets another"
    )


def test_what_does_not_fit_into_the_engines_waits_for_its_turn() -> None:
    assert GenerationBound.of(config(rollout_batch_size=200)).seconds == 600 + 2 * 500
    assert GenerationBound.of(config(over_sampling_batch_size=400)).seconds == 600 + 4 * 500
    assert GenerationBound.of(config(), samples=10).seconds == 600 + 500
    longer = config().replace("eval", eval_max_response_len=3000)
    assert GenerationBound.of(longer).seconds == 600 + 1500


def test_later_steps_are_bounded_by_the_slowest_step_so_far() -> None:
    deadline = RolloutDeadline(config())
    deadline.measured(4000.0, 10.0)
    deadline.measured(4000.0, 100.0)
    deadline.measured(4000.0, 1.0)
    deadline.measured(0.0, 5.0)  # nothing was sampled, nothing is known
    assert deadline.slowest == 40.0
    assert deadline.of_step().seconds == 3 * 2 * 32 * 1000 / 40
    assert deadline.of_step().why.startswith("3 times what 64000 tokens take at 40 tokens/s, the slowest step so far")
    assert deadline.of_evaluation(100).seconds == 3 * 100 * 1000 / 40
    deadline.slowest = 1e6
    assert deadline.of_step().seconds == 600


def test_a_filter_may_sample_its_rounds() -> None:
    deadline = RolloutDeadline(config(dynamic_sampling_filter_path="check_reward_nonzero_std", max_filter_rounds=5))
    assert deadline.of_step().seconds == 4 * (1100 + 60)
    deadline.measured(4000.0, 100.0)
    assert deadline.of_step().seconds == 3 * 5 * 32 * 1000 / 40


@pytest.mark.parametrize("speed", [None, 1.0])
def test_the_flag_wins(speed: float | None) -> None:
    given = config(generate_timeout_secs=50.0, max_filter_rounds=3)
    deadline = RolloutDeadline(given)
    deadline.slowest = speed
    assert generation_deadline(given) == 50
    assert deadline.of_step().seconds == 200
    assert deadline.of_step().why == "--generate-timeout-secs 50 for each of 4 rounds"
    assert deadline.of_evaluation(600).seconds == 100
