"""What every registered algorithm declares: a card, options that it reads, ranges, and needs that follow options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from vime_testing.toy_step import random_case

from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.metrics import finish
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.prepare import prepare_step
from vime_core.api.errors import ConfigError
from vime_core.batch.aggregate import check_aggregation
from vime_core.observe.catalog import unknown
from vime_core.plugin.plugins import Plugins

REGISTRY = Plugins.load(environ={}).algorithms
NAMES = [provider.name for provider in REGISTRY]
#: read by the trainer's critic
ELSEWHERE = {"ppo": {"value_clip"}}


class Watched(Mapping[str, Any]):
    """Options that note which of them were read."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options, self.read = options, set[str]()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self.options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)


def switched(name: str) -> Mapping[str, Any]:
    """A reward KL on where there is one, so that what depends on it is read."""
    algorithm = REGISTRY.resolve(name)()
    return merge_options(algorithm, {"kl_coef": 0.1} if "kl_coef" in algorithm.defaults else {})


@pytest.mark.parametrize("name", NAMES)
def test_it_reads_its_options_and_logs_known_names(name: str) -> None:
    algorithm, options = REGISTRY.resolve(name)(), Watched(switched(name))
    needs = algorithm.required(options.options)
    case = random_case(0, needs)
    prepared, samples = prepare_step(Objective(algorithm, options, "token_mean"), case.batch), range(len(case.batch))
    share = MicroBatchSlice.of(prepared, prepared.weight(samples), samples, dtype=torch.float64)
    _, pairs = micro_loss(
        Objective(algorithm, options),
        share.view(case.log_probs(case.logits)),
        TokenColumns(share.advantage, share.weight),
    )
    assert options.read - {"kl_coef"} == set(algorithm.defaults) - ELSEWHERE.get(name, set()) - {"kl_coef"}
    assert unknown(f"train/{metric}" for metric in {**prepared.metrics, **finish(pairs)}) == []


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_card(name: str) -> None:
    algorithm = REGISTRY.resolve(name)
    assert (algorithm.name, algorithm.aggregate) == (name, check_aggregation(algorithm.aggregate))
    assert algorithm.info is not None
    assert all([algorithm.info.title, algorithm.info.source, algorithm.info.advantage, algorithm.info.loss])


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_is_needed_where_the_reward_has_a_kl(name: str) -> None:
    algorithm = REGISTRY.resolve(name)()
    assert algorithm.required(merge_options(algorithm, {})) == algorithm.needs
    if "kl_coef" in algorithm.defaults:
        assert algorithm.required(switched(name)) == algorithm.needs | {"ref_logp"}
        assert algorithm.recompute_old_logprobs


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("ppo", {"gamma": 1.5}, r"gamma is 1\.5; give a number from 0 to 1"),
        ("ppo", {"lambd": -0.1}, r"lambd is -0\.1; give a number from 0 to 1"),
        ("ppo", {"value_clip": 0}, "value_clip is 0; give a number above 0"),
        ("ppo", {"kl_coef": -1.0}, "kl_coef is -1.0; give a number of at least 0"),
        ("ppo", {"kl_coef": math.inf}, "kl_coef is inf; give a number of at least 0"),
        (
            "reinforce_plus_plus",
            {"kl_estimator": "k9"},
            "kl_estimator is 'k9'; give one of k1, abs, k2, k3, low_var_kl",
        ),
        ("sapo", {"tau_pos": 0.0}, "tau_pos is 0.0; give a number above 0"),
        ("sapo", {"eps_clip": 0.2}, "'sapo' does not read eps_clip"),
        ("cispo", {"eps_clip": 1.1}, "eps_clip is 1.1; give a number from 0 to 1"),
        ("cispo", {"eps_clip_c": 3.0}, "'cispo' does not read eps_clip_c"),
        ("gspo", {"eps_clip_c": 1}, "eps_clip_c is 1; give a number above 1"),
        ("dr_grpo", {"disable_grpo_std_normalization": True}, "'dr_grpo' does not read disable_grpo_std_normalization"),
        ("reinforce_plus_plus_baseline", {"gamma": 1.0}, "'reinforce_plus_plus_baseline' does not read gamma"),
        ("opd", {"teacher_coef": math.nan}, "teacher_coef is nan; give a number above 0"),
    ],
)
def test_values_and_names_are_checked(name: str, given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        merge_options(REGISTRY.resolve(name)(), given)
