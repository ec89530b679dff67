"""Every property of a step, with what the framework puts around the algorithm switched on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vime_testing import algorithms as kit
from vime_testing.toy_step import Subject, random_case

from vime_core.algorithms.cispo import Cispo
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.gspo import Gspo
from vime_core.algorithms.loss_config import LossConfig
from vime_core.api.algorithm import Algorithm

CASES: dict[str, tuple[Algorithm, str, LossConfig]] = {
    "everything": (
        Grpo(),
        "rollout_mean",
        LossConfig(
            entropy_coef=0.03,
            kl_loss_coef=0.2,
            kl_loss_type="k3",
            use_unbiased_kl=True,
            normalize_advantages=True,
            opd_kl_coef=0.3,
            correction="tis",
            opsm_delta=0.2,
            mask_truncated_samples=True,
        ),
    ),
    "rejected out of the denominator": (
        Grpo(),
        "token_mean",
        LossConfig(kl_loss_coef=0.2, correction="icepop", correction_options={"leave_denominator": True}),
    ),
    "sequence weights": (
        Gspo(),
        "sample_mean",
        LossConfig(
            kl_loss_coef=0.2,
            kl_loss_type="low_var_kl",
            correction="mis",
            correction_options={
                "level": "sequence",
                "mode": "clip",
                "veto": 0.2,
                "normalize": True,
                "reject_high": 1.5,
            },
        ),
    ),
    "the sampler as the old policy": (
        Gspo(),
        "prompt_mean",
        LossConfig(kl_loss_coef=0.1, use_rollout_logprobs=True, normalize_advantages=True),
    ),
    "overlong": (Cispo(), "fixed_length", LossConfig(overlong_buffer_len=4, max_response_len=8, opd_kl_coef=0.1)),
}
#: masked tokens at the end of a response make it longer, and its length is what the penalty is about
NOT_FOR = {"overlong": {kit.check_padding}}


@pytest.mark.parametrize("name", CASES)
def test_properties(name: str) -> None:
    algorithm, aggregation, loss_config = CASES[name]
    subject = Subject(algorithm, aggregation, loss_config=loss_config)
    case = random_case(1, subject.required)
    for check in kit.CHECKS:
        if check not in NOT_FOR.get(name, ()):
            check(subject, case, np.random.default_rng(1))


@pytest.mark.parametrize("name", [name for name in CASES if name != "overlong"])
def test_gradients_are_those_of_the_loss(name: str) -> None:
    algorithm, aggregation, loss_config = CASES[name]
    subject = Subject(algorithm, aggregation, loss_config=loss_config)
    case = random_case(2, subject.required)
    kit.check_gradient(subject, case, np.random.default_rng(2))


def test_the_terms_are_really_there() -> None:
    """Each changes the step: none is switched on in vain."""
    for name, (algorithm, aggregation, loss_config) in CASES.items():
        case = random_case(1, Subject(algorithm, aggregation, loss_config=loss_config).required)
        losses: list[Any] = [
            Subject(algorithm, aggregation, loss_config=each).run(case).loss
            for each in (loss_config, LossConfig(entropy_coef=0.0))
        ]
        assert losses[0] != losses[1], name
