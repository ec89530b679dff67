"""The environment of each role, and what a process does first."""

from __future__ import annotations

import pytest
from vime_cuda.config import CudaOptions
from vime_cuda.environment import Situation, variables
from vime_cuda.process import started
from vime_cuda.visible import VISIBLE

ROLES = ("driver", "rollout", "trainer", "engine")
NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("colocated", [False, True])
def test_it_is_a_function_of_its_arguments(role: str, colocated: bool, monkeypatch) -> None:
    situation = Situation(colocated=colocated)
    before = variables(role, situation)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert variables(role, situation) == before
    assert all(isinstance(value, str) for value in before.values())


def test_processes_without_a_device_get_nothing() -> None:
    assert variables("driver", Situation()) == variables("rollout", Situation()) == {}


@pytest.mark.parametrize(
    ("role", "colocated", "value"),
    [
        ("trainer", False, "expandable_segments:True"),
        ("trainer", True, "expandable_segments:False"),
        ("engine", True, "expandable_segments:False"),
        ("engine", False, None),
    ],
)
def test_the_allocator_is_spelled_out_under_both_names(role: str, colocated: bool, value: str | None) -> None:
    found = variables(role, Situation(colocated=colocated))
    assert [found.get(name) for name in NAMES] == [value, value]


def test_megatron_gets_what_it_asserts() -> None:
    assert variables("trainer", Situation())["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in variables("engine", Situation())


def test_options_reach_both_sides_and_nothing_is_set_without_them() -> None:
    options = CudaOptions(deterministic=True, nccl_interface="eth1")
    both = {"NCCL_SOCKET_IFNAME": "eth1", "NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    own = {
        "trainer": {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"},
        "engine": {"VLLM_BATCH_INVARIANT": "1"},
    }
    for role, more in own.items():
        plain, found = variables(role, Situation()), variables(role, Situation(options=options))
        assert {name: found[name] for name in found.keys() - plain.keys()} == both | more


def test_an_engine_sees_its_own_devices_also_where_ray_does_not_narrow() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    VISIBLE.narrow(environ, ["6", "7"])
    assert environ == {"CUDA_VISIBLE_DEVICES": "6,7"}
    VISIBLE.narrow(environ, [])
    assert environ == {"CUDA_VISIBLE_DEVICES": "6,7"}


def test_a_process_outside_of_ray_is_left_alone() -> None:
    for environ in ({}, {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}):
        before = dict(environ)
        for role in ROLES:
            started(role, environ)
            started(role, environ)
        assert environ == before
