"""Every property for every registered algorithm and aggregation; and for four that a third party might write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from vime_testing.algorithms import check_algorithm

from vime_core.algorithms.common import bounded_exp, broadcast_to_tokens, clipped_loss, group_advantage, ratio, whiten
from vime_core.algorithms.grpo import Grpo
from vime_core.api.algorithm import Algorithm
from vime_core.batch.aggregate import AGGREGATIONS
from vime_core.plugin.plugins import Plugins

Options = Mapping[str, Any]


class SequenceRatio(Grpo):
    """GSPO in the form that shares one ratio a sequence: the reductions must hide context parallelism."""

    name = "sequence-ratio"

    def surrogate(self, view: Any, advantage: torch.Tensor, options: Options) -> Any:
        s = view.broadcast_to_tokens(bounded_exp(view.seq_mean(view.logp - view.old_logp)))
        return clipped_loss(s, advantage, 0.2, 0.2).loss, {"ois": s}


class ClippedWeight(Algorithm):
    """CISPO: a detached, clipped ratio times the log-prob; its gradient is not that of its value."""

    name = "clipped-weight"
    needs = frozenset({"old_logp", "reward"})
    aggregate = "token_mean"
    defaults: ClassVar[Options] = {"eps": 1.0, "eps_high": 4.0}

    def advantages(self, batch: Any, options: Options) -> torch.Tensor:
        return group_advantage(batch)

    def surrogate(self, view: Any, advantage: torch.Tensor, options: Options) -> Any:
        w = ratio(view).clamp(1 - options["eps"], 1 + options["eps_high"]).detach()
        return -w * advantage * view.logp, {"weight": w}


class WhitenedToReference(Algorithm):
    """REINFORCE with a reference in the reward and statistics over the whole batch."""

    name = "whitened-to-reference"
    needs = frozenset({"reward", "ref_logp", "rollout_logp"})

    def advantages(self, batch: Any, options: Options) -> torch.Tensor:
        shaped = broadcast_to_tokens(batch, batch.t("reward")) - 0.1 * (batch.t("rollout_logp") - batch.t("ref_logp"))
        return whiten(shaped, batch.t("mask"))

    def surrogate(self, view: Any, advantage: torch.Tensor, options: Options) -> Any:
        drift = view.logp - view.extra["ref_logp"]
        return -advantage * view.logp + 0.05 * drift.square(), {"drift": drift}


class Corrected(Grpo):
    """Truncated importance sampling against the sampler, and truncated samples left out."""

    name = "corrected"
    needs = frozenset({"old_logp", "reward", "rollout_logp"})
    recompute_old_logprobs = True

    def select(self, batch: Any, options: Options) -> torch.Tensor:
        return ~batch.t("truncated")

    def correction(self, batch: Any, options: Options) -> Any:
        rho = bounded_exp(batch.t("old_logp") - batch.t("rollout_logp"))
        return rho.clamp(max=2.0), {"tis": rho}


REGISTRY = Plugins.load(environ={}).algorithms
NAMES = [provider.name for provider in REGISTRY]
REWARD_KL = {"kl_coef": 0.1, "kl_estimator": "k3", "eps_clip_c": 1.3}
#: options that switch on what is off by default
SWITCHED: Mapping[str, Options] = {
    "grpo": {"eps_clip": 0.1, "eps_clip_high": 0.28, "eps_clip_c": 1.3, "disable_grpo_std_normalization": True},
    "dapo": {"eps_clip_c": 3.0, "eps_clip_high": 0.0},
    "dr_grpo": {"eps_clip_c": 1.3},
    "gspo": {"eps_clip": 0.1, "eps_clip_high": 0.2, "eps_clip_c": 1.3},
    "gmpo": {"eps_clip": 0.1, "disable_grpo_std_normalization": True},
    "cispo": {"eps_clip": 0.2, "eps_clip_high": 0.28, "disable_grpo_std_normalization": True},
    "sapo": {"tau_pos": 3.0, "tau_neg": 0.5, "disable_grpo_std_normalization": True},
    "dppo": {"eps_clip": 0.05, "eps_clip_high": 0.02},
    "rloo": {"eps_clip_high": 0.4, "eps_clip_c": 1.1},
    "opo": {"eps_clip": 0.0},
    "maxrl": {"eps_clip_high": 0.28},
    "reinforce": {"gamma": 0.5},
    "reinforce_plus_plus": {**REWARD_KL, "gamma": 0.9},
    "reinforce_plus_plus_baseline": REWARD_KL,
    "ppo": {**REWARD_KL, "gamma": 0.9, "lambd": 0.7, "value_clip": 0.5},
    "opd": {"teacher_coef": 0.3, "eps_clip_c": 1.3},
}
#: their surrogate detaches a factor, so its gradient is not that of its value
DETACHED = frozenset({"cispo"})
THEIRS: dict[str, tuple[Algorithm, Options]] = {
    x.name: (x, {}) for x in (SequenceRatio(), WhitenedToReference(), Corrected())
}


def check(name: str, options: Options, aggregations: Sequence[str], seeds: Sequence[int]) -> None:
    check_algorithm(
        REGISTRY.resolve(name)(),
        options=options,
        aggregations=aggregations,
        seeds=seeds,
        finite_differences=name not in DETACHED,
    )


def test_every_registered_algorithm_has_a_row() -> None:
    assert {*SWITCHED, "sft"} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_as_it_is(name: str) -> None:
    check(name, {}, [REGISTRY.resolve(name).aggregate], [0])


@pytest.mark.parametrize("at", range(len(SWITCHED)), ids=list(SWITCHED))
def test_with_everything_switched_on(at: int) -> None:
    """Aggregations take turns; the slow sweep has all of them."""
    name = list(SWITCHED)[at]
    check(name, SWITCHED[name], [list(AGGREGATIONS)[at % len(AGGREGATIONS)]], [1])


@pytest.mark.parametrize("aggregation", ["rollout_mean", "prompt_mean"])
@pytest.mark.parametrize(("algorithm", "options"), THEIRS.values(), ids=THEIRS)
def test_a_third_partys(algorithm: Algorithm, options: Options, aggregation: str) -> None:
    check_algorithm(algorithm, options=options, aggregations=[aggregation], seeds=[1])


@pytest.mark.slow
@pytest.mark.parametrize("switched", [False, True], ids=["plain", "switched"])
@pytest.mark.parametrize("name", NAMES)
def test_over_many_batches(name: str, switched: bool, seeds: Sequence[int]) -> None:
    """Every aggregation, on a fixed batch and on one that is new in each run (a failure names its seed)."""
    check(name, SWITCHED.get(name, {}) if switched else {}, list(AGGREGATIONS), seeds)


@pytest.fixture(scope="module")
def seeds() -> Sequence[int]:
    return [2, *np.random.SeedSequence().generate_state(1).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "options"), THEIRS.values(), ids=THEIRS)
def test_a_third_partys_over_many_batches(algorithm: Algorithm, options: Options) -> None:
    check_algorithm(algorithm, options=options, seeds=range(2, 6))


def test_a_detached_weight_passes_everything_but_the_difference_quotient() -> None:
    check_algorithm(ClippedWeight(), aggregations=["token_mean"], seeds=[0], finite_differences=False)
    with pytest.raises(AssertionError, match=r"gradient at logit .* difference quotient"):
        check_algorithm(ClippedWeight(), aggregations=["token_mean"], seeds=[0])
