"""Routed experts on their way: columns of replies, a server's text, the sample that grows, the column of the batch."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

from tests.inference.conftest import needs_routed_experts
from vime_core.api.errors import ConfigError, EngineError
from vime_core.api.rollout import GenerateReply
from vime_core.api.sample import Sample
from vime_core.api.streams import ROUTING
from vime_core.data.codec import sample_from_json, sample_to_json
from vime_core.inference.columns import ReplyColumns, UncheckedReply
from vime_core.inference.routing import routing_from_text
from vime_core.inference.spec import ROUTING_SCHEDULER, engine_specs


def rows(count: int, first: int = 0) -> np.ndarray:
    """[count, 3 layers, 2] that differ everywhere."""
    return (first * 6 + np.arange(count * 6)).astype(np.uint8).reshape(count, 3, 2)


def text_of(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def sample_of(prompt: int = 3) -> Sample:
    return Sample(0, 4, 9, 1, "p", prompt_tokens=list(range(prompt)))


def test_replies_in_columns_keep_each_its_rows() -> None:
    replies = [
        GenerateReply("a", [5, 6], [-1.0, -2.0], [1, 1], "stop", 0, {ROUTING: rows(4)}),
        GenerateReply("b", [], [], [], "abort"),
        GenerateReply("c", [7], [-1.0], [1], "length", 0, {ROUTING: rows(2, first=4)}),
    ]
    back = ReplyColumns.pack(replies).unpack()
    assert back == replies
    np.testing.assert_array_equal(back[0].streams[ROUTING], replies[0].streams[ROUTING])
    assert back[1].streams == {}
    np.testing.assert_array_equal(back[2].streams[ROUTING], replies[2].streams[ROUTING])
    assert ReplyColumns.pack(replies[1:2]).unpack()[0].streams == {}


def test_a_servers_text_is_read() -> None:
    np.testing.assert_array_equal(routing_from_text("a", text_of(rows(3))), rows(3))


@pytest.mark.parametrize("text", ["?", "aGVsbG8=", text_of(rows(3))[:40]])
def test_text_that_is_something_else_is_an_error(text: str) -> None:
    with pytest.raises(EngineError, match=r"request a: .* cannot be read"):
        routing_from_text("a", text)


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.uint8), np.zeros((2, 3, 2), np.float32)])
def test_rows_of_another_shape_or_type_are_an_error(array: np.ndarray) -> None:
    with pytest.raises(EngineError, match=r"request a: .*not int16 \[tokens, layers, topk\]"):
        UncheckedReply("a", [1], [-1.0], [("0", 0, 1)], "stop", 0, {ROUTING: array}).checked()


def test_a_sample_grows_with_its_rows_and_keeps_those_it_has() -> None:
    sample = sample_of(3)
    sample.append_model([5, 6], [-1.0, -1.0], [0, 0], {ROUTING: rows(4)})
    sample.append_observation([7])
    sample.append_model([8], [-1.0], [1], {ROUTING: rows(6, first=20)})
    np.testing.assert_array_equal(sample.streams[ROUTING], np.concatenate([rows(4), rows(6, first=20)[4:]]))
    assert len(sample.streams[ROUTING]) == len(sample.tokens) - 1
    back = sample_from_json(sample_to_json(sample))
    np.testing.assert_array_equal(back.streams[ROUTING], sample.streams[ROUTING])
    assert back.streams[ROUTING].dtype == np.uint8
    sample.reset()
    assert sample.streams == {}


@pytest.mark.parametrize("count", [3, 5])
def test_a_sample_takes_exactly_its_rows(count: int) -> None:
    sample = sample_of(3)
    with pytest.raises(ValueError, match=rf"rollout 9.*{count} rows of routed experts where 4 belong to 2 new tokens"):
        sample.append_model([5, 6], [-1.0, -1.0], [0, 0], {ROUTING: rows(count)})
    assert sample.response_tokens == []


def specs(**vllm: Any) -> Any:
    import dataclasses

    from vime_core.config.sections import Config
    from vime_core.devices.cpu import CpuBackend

    config = Config().replace("train", use_rollout_routing_replay=True)
    return engine_specs(dataclasses.replace(config, vllm=vllm), CpuBackend(), "folder")


@needs_routed_experts
def test_engines_are_asked_for_experts_only_where_they_are_replayed() -> None:
    from vime_core.config.sections import Config
    from vime_core.devices.cpu import CpuBackend

    (spec,) = specs()
    assert spec.arguments["scheduler_cls"] == ROUTING_SCHEDULER
    assert spec.arguments["enable_prefix_caching"] is True
    (plain,) = engine_specs(Config(), CpuBackend(), "folder")
    assert not {"scheduler_cls", "enable_prefix_caching"} & set(plain.arguments)


@needs_routed_experts
def test_an_engine_without_prefix_cache_cannot_return_experts() -> None:
    with pytest.raises(ConfigError, match="--vllm-enable-prefix-caching False"):
        specs(enable_prefix_caching=False)
