"""The environment of each role, and the order in which a process takes it up."""

from __future__ import annotations

import itertools
import json
import sys

import pytest
from vime_ascend.backend import situation_of
from vime_ascend.config import AscendOptions
from vime_ascend.environment import MARK, Situation, variables
from vime_ascend.process import started

from vime_core import Config
from vime_core.api.errors import ConfigError

ROLES = ("driver", "rollout", "trainer", "engine")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("colocated", [False, True])
def test_it_is_a_function_of_its_arguments(role: str, colocated: bool, monkeypatch) -> None:
    situation = Situation(colocated=colocated)
    before = variables(role, situation)
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")
    assert variables(role, situation) == before
    assert all(isinstance(value, str) for value in before.values())


def test_processes_without_a_device_do_not_load_torch_npu() -> None:
    assert (
        variables("driver", Situation()) == variables("rollout", Situation()) == {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    )
    for role in ("trainer", "engine"):
        assert variables(role, Situation())["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"


@pytest.mark.parametrize(
    ("role", "colocated", "value"),
    [
        ("trainer", False, "expandable_segments:True"),
        ("trainer", True, "expandable_segments:False"),
        ("engine", True, "expandable_segments:False"),
        ("engine", False, None),
    ],
)
def test_the_allocator_is_spelled_out_where_it_matters(role: str, colocated: bool, value: str | None) -> None:
    assert variables(role, Situation(colocated=colocated)).get("PYTORCH_NPU_ALLOC_CONF") == value


def test_roles_share_no_port() -> None:
    trainer, engine = (variables(role, Situation()) for role in ("trainer", "engine"))
    names = ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE")
    ranges = sorted(tuple(map(int, part[name].split("-"))) for part in (trainer, engine) for name in names)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


@pytest.mark.parametrize(
    ("deadlines", "connect", "execute"),
    [((300.0, 600.0, 900.0), "600", "900"), ((1.5, 2.0, 3.0), "120", "120"), ((9e9, 1.0, 1.0), "7200", "120")],
)
def test_hccl_never_gives_up_before_vime(deadlines: tuple[float, float, float], connect: str, execute: str) -> None:
    found = variables("trainer", Situation(False, *deadlines))
    assert (found["HCCL_CONNECT_TIMEOUT"], found["HCCL_EXEC_TIMEOUT"]) == (connect, execute)


def test_options_reach_both_sides_and_nothing_is_set_without_them() -> None:
    options = AscendOptions(hccl_buffer_mb=400, hccl_interface="eth1", deterministic=True)
    for role in ("trainer", "engine"):
        plain = variables(role, Situation())
        more = variables(role, Situation(options=options))
        new = {"HCCL_BUFFSIZE": "400", "HCCL_SOCKET_IFNAME": "eth1", "HCCL_DETERMINISTIC": "true"}
        assert {name: more[name] for name in more.keys() - plain.keys()} == new


def test_megatron_and_vllm_get_what_each_asserts() -> None:
    assert variables("trainer", Situation())["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in variables("engine", Situation())
    assert variables("engine", Situation())["VLLM_ASCEND_ENABLE_NZ"] == "0"


def test_a_bad_port_range_is_an_error_of_the_option() -> None:
    with pytest.raises(ConfigError, match="--ascend-hccl-ports 1-2"):
        variables("engine", Situation(options=AscendOptions(hccl_ports="1-2")))


def test_the_situation_is_read_from_the_configuration() -> None:
    options = AscendOptions(trainer="mindspeed")
    config = Config(plugins={"ascend": options}).replace("cluster", colocate=True, distributed_timeout_minutes=3.0)
    assert situation_of(config) == Situation(True, 300.0, 180.0, 900.0, options)
    assert situation_of(Config()).options == AscendOptions()


def test_a_process_of_another_device_is_left_alone() -> None:
    environ: dict[str, str] = {}
    for role in ROLES:
        started(role, environ)
    assert environ == {}


def test_a_trainer_learns_its_variant_from_the_environment() -> None:
    options = AscendOptions(trainer="mindspeed", mindspeed={"use_fused_swiglu": True})
    mark = json.loads(variables("trainer", Situation(options=options))[MARK])
    assert mark == {"role": "trainer", "trainer": "mindspeed", "mindspeed": {"use_fused_swiglu": True}}


def test_starting_twice_is_starting_once() -> None:
    environ = variables("engine", Situation())
    started("engine", environ)
    once = dict(environ)
    started("engine", environ)
    assert environ == once
    assert "torch_npu" not in sys.modules
