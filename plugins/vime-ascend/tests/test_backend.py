"""The device backend's answers, on a machine without an NPU; and the core's suite for devices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from vime_ascend.backend import AscendBackend
from vime_ascend.config import AscendOptions
from vime_ascend.engine import engine_arguments, merged
from vime_ascend.environment import Situation
from vime_ascend.probe import present
from vime_testing import DeviceSuite

from vime_core import Config, VimeError
from vime_core.inference.spec import engine_spec


class TestAscend(DeviceSuite):
    plugin = "ascend"
    target = "ascend/ascend"


def test_it_differs_from_other_devices_by_values() -> None:
    device = AscendBackend()
    assert (device.device_type, device.collective, device.module_name) == ("npu", "hccl", "torch.npu")
    assert device.ray_options(2) == {"resources": {"NPU": 2}, "num_cpus": 0}
    assert device.megatron_overrides()["gradient_accumulation_fusion"] is False


def test_making_it_imports_no_torch() -> None:
    code = (
        "import sys; from vime_ascend.backend import AscendBackend as A; d = A(); "
        "d.environment('trainer'), d.ray_options(1), d.engine_arguments(), d.count(), d.local_index(0); "
        "print(sorted({'ray', 'torch', 'torch_npu', 'vllm', 'megatron'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "[]\n", run.stderr


def test_using_it_without_an_npu_says_what_is_missing() -> None:
    if present()[0]:
        pytest.skip("there is an NPU here")
    with pytest.raises(VimeError, match="torch_npu cannot be loaded: No module named 'torch_npu'\n  no Ascend NPU"):
        AscendBackend().synchronize()


def test_it_is_bound_to_the_run() -> None:
    options = AscendOptions(trainer="mindspeed", graphs=True)
    config = Config(vllm={"additional_config": {"weight_prefetch": True}}, plugins={"ascend": options})
    device = AscendBackend().bind(config.replace("cluster", colocate=True))
    assert device.environment("engine")["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:False"
    assert device.engine_arguments() == {
        "additional_config": {"weight_nz_mode": 0, "weight_prefetch": True},
        "enforce_eager": False,
    }
    assert "apply_rope_fusion" not in device.megatron_overrides()


def test_engine_arguments_follow_options_and_version() -> None:
    options = AscendOptions()
    old, new = (engine_arguments(options, knows) for knows in (False, True))
    assert old["additional_config"] == {"weight_nz_mode": 0}
    assert new["additional_config"] == {"weight_nz_mode": 0, "rl_config": {"enabled": True}}
    assert old["enforce_eager"] is True


@pytest.mark.parametrize(("colocated", "sleeps"), [(True, None), (True, False), (False, None)])
def test_sleep_mode_is_on_where_engines_sleep(tmp_path: Path, colocated: bool, sleeps: bool | None) -> None:
    config = Config().replace("cluster", colocate=colocated, offload_rollout=sleeps)
    spec = engine_spec(config, AscendBackend().bind(config), str(tmp_path), 0)
    assert ("enable_sleep_mode" in spec.arguments) is (colocated and sleeps is None)


def test_the_users_table_replaces_single_keys() -> None:
    ours = engine_arguments(AscendOptions(), True)
    assert merged(ours, {}) == ours
    both = merged(ours, {"additional_config": {"rl_config": {"enabled": False}}})
    assert both["additional_config"] == {"weight_nz_mode": 0, "rl_config": {"enabled": False}}


@pytest.mark.parametrize(
    ("visible", "rank", "index"), [("", 3, 3), ("4,5,6,7", 2, 2), ("5", 3, 0)], ids=["all", "some", "one"]
)
def test_outside_of_ray_a_worker_takes_its_place_in_the_list(visible, rank, index, monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    assert AscendBackend().local_index(rank) == index


def test_devices_are_counted_without_torch(monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0-3,8")
    assert AscendBackend().count() == 5
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES")
    assert AscendBackend().count() == len(list(Path("/dev").glob("davinci[0-9]*")))


def test_the_situation_has_defaults_of_the_core() -> None:
    assert AscendBackend().situation == Situation()
