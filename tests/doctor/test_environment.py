"""Variables of the environment, one at a time."""

from __future__ import annotations

import pytest
from vime_cli.doctor import environment


@pytest.mark.parametrize("text", ["many", "0", "-1", "1.5", "100000"])
def test_threads_that_are_no_number_of_cores(text: str) -> None:
    found = environment.threads({"OMP_NUM_THREADS": text})
    assert (found.status, found.fix) == ("warning", "export OMP_NUM_THREADS=1")
    assert repr(text) in found.detail


def test_threads_that_are_not_set() -> None:
    assert environment.threads({}).status == "warning"
    assert environment.threads({"OMP_NUM_THREADS": "1"}).status == "ok"


def test_an_address_of_a_ray_cluster_in_the_environment() -> None:
    (found,) = environment.ray({"RAY_ADDRESS": "10.0.0.1:6379"})
    assert found.status == "broken"
    assert found.fix == "unset RAY_ADDRESS; vime train --ray-address 10.0.0.1:6379 joins it"
    assert list(environment.ray({})) == []


def test_a_misspelt_variable_of_vime() -> None:
    (found,) = environment.own({"VIME_ROLLOUT_BATCH_SIZ": "4"}, {})
    assert found.status == "broken"
    assert "VIME_ROLLOUT_BATCH_SIZ" in found.detail
    assert list(environment.own({"VIME_ROLLOUT_BATCH_SIZE": "4", "HOME": "/"}, {})) == []


def test_the_hub() -> None:
    assert "nothing is looked up" in environment.hub({"HF_HUB_OFFLINE": "1"}).detail
    assert environment.hub({}).ok
