"""The three forms of vLLM's weight-transfer interface, by classes of their shapes and by what is installed here."""

from __future__ import annotations

from typing import Any

import pytest
from vime_ascend.sync.generation import G1, G2, G3, of_engine

from vime_core.errors import ConfigError


class First:
    def __init__(self, config: Any, parallel_config: Any, model: Any) -> None: ...

    def receive_weights(self, update_info: Any, load_weights: Any) -> None: ...

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None: ...


class Second:
    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None: ...

    def receive_weights(self, update_info: Any) -> None: ...

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None: ...


class Third:
    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None: ...

    def receive_weights(self, update_info: Any) -> None: ...


class Fourth:
    def __init__(self, config: Any) -> None: ...

    def receive_weights(self, update_info: Any) -> None: ...


@pytest.mark.parametrize(("engine", "generation"), [(First, G1), (Second, G2), (Third, G3)])
def test_a_form_is_told_by_its_shape(engine: type, generation: Any) -> None:
    assert of_engine(engine) is generation


def test_a_form_that_nobody_knows_is_an_error_that_shows_it() -> None:
    with pytest.raises(ConfigError, match=r"Fourth: its constructor takes \['config'\]"):
        of_engine(Fourth)


@pytest.mark.slow
def test_the_installed_vllm_has_the_newest_form() -> None:
    from vime_ascend.sync.generation import detect

    assert detect() is G3
