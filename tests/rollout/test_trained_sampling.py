"""Samples for training come from the distribution that is trained; nothing that a generator asks for changes that."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vime_core.api.errors import PluginError
from vime_core.api.rollout import GenerateRequest, SamplingParams
from vime_core.rollout.trained_sampling import TrainedSampling, changed_distribution

PARAMS = SamplingParams(max_tokens=4, temperature=0.7)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"temperature": 0.0}, "temperature = 0"),
        ({"temperature": 1.0}, "temperature = 1"),
        ({"top_p": 0.9}, "top_p = 0.9"),
        ({"top_k": 20}, "top_k = 20"),
        ({"min_p": 0.1}, "min_p = 0.1"),
        ({"min_tokens": 3}, "min_tokens = 3"),
        ({"extra": {"repetition_penalty": 1.1}}, "repetition_penalty = 1.1"),
        ({"extra": {"logit_bias": {5: 1.0}}}, "logit_bias = {5: 1.0}"),
        ({"extra": {"allowed_token_ids": [1, 2]}}, "allowed_token_ids = [1, 2]"),
        ({"extra": {"temperature": 2.0}}, "temperature = 2.0"),
        ({"extra": {"what_vllm_has_next_year": 1}}, "what_vllm_has_next_year = 1"),
    ],
)
def test_what_changes_the_distribution_is_refused_by_name(client: Any, change: dict[str, Any], named: str) -> None:
    engine = client("12")
    request = GenerateRequest(("r0",), [5, 6], replace(PARAMS, **change))
    with pytest.raises(PluginError, match="the generator asked for") as caught:
        asyncio.run(TrainedSampling(engine, 0.7).generate(request))
    assert f"asked for {named}:" in str(caught.value)
    assert not engine.calls


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"top_k": 0},
        {"max_tokens": 9},
        {"stop": ("a",), "stop_token_ids": (3,), "ignore_eos": True, "seed": 3, "top_logprobs": 2},
        {"extra": {"include_stop_str_in_output": True}},
    ],
)
def test_where_a_response_ends_is_the_generators_to_say(client: Any, change: dict[str, Any]) -> None:
    assert changed_distribution(replace(PARAMS, **change), 0.7) == []
    request = GenerateRequest(("r0",), [5, 6], replace(PARAMS, **change))
    (reply,) = asyncio.run(TrainedSampling(client("12"), 0.7).generate(request))
    assert reply.tokens
    assert set(SamplingParams.__dataclass_fields__) >= set(change)


def test_every_parameter_is_known_to_the_check() -> None:
    """One that SamplingParams gets has to be decided on here."""
    free = {"max_tokens", "stop", "stop_token_ids", "ignore_eos", "seed", "skip_special_tokens", "top_logprobs"}
    text = Path(changed_distribution.__code__.co_filename).read_text()
    for name in set(SamplingParams.__dataclass_fields__) - free:
        assert f"params.{name}" in text, name
