"""The device backend's answers, on a machine without a GPU; and the core's suite for devices."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from vime_cuda.backend import CudaBackend, situation_of
from vime_cuda.config import CudaOptions
from vime_cuda.environment import Situation
from vime_cuda.layers import chosen, require_transformer_engine
from vime_cuda.probe import device_nodes, present
from vime_testing import DeviceSuite, PluginSuite

from vime_core import Config, VimeError


class TestPlugin(PluginSuite):
    plugin = "cuda"


class TestDevice(DeviceSuite):
    plugin = "cuda"
    target = "cuda/cuda"


def test_it_differs_from_other_devices_by_values() -> None:
    device = CudaBackend()
    assert (device.device_type, device.collective, device.module_name) == ("cuda", "nccl", "torch.cuda")
    assert (device.supports_sleep, device.supports_colocate, device.pins_memory) == (True, True, True)
    assert device.ray_options(2) == {"num_gpus": 2, "num_cpus": 0}


def test_making_it_imports_no_torch() -> None:
    code = (
        "import sys; from vime_cuda.backend import CudaBackend as C; d = C(); "
        "d.environment('trainer'), d.ray_options(1), d.engine_arguments(), d.count(), d.local_index(0), d.doctor(); "
        "print(sorted({'ray', 'torch', 'transformer_engine', 'vllm', 'megatron'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "[]\n", run.stderr


def test_using_it_without_a_gpu_says_what_is_missing() -> None:
    if present()[0]:
        pytest.skip("there is a GPU here")
    with pytest.raises(VimeError, match="torch finds no CUDA device\n  no NVIDIA device"):
        CudaBackend().synchronize()


def test_it_is_bound_to_the_run() -> None:
    config = Config(plugins={"cuda": CudaOptions(trainer="plain", deterministic=True)})
    bound = CudaBackend().bind(config.replace("cluster", colocate=True, rollout_num_gpus_per_engine=2))
    assert bound.environment("engine")["PYTORCH_ALLOC_CONF"] == "expandable_segments:False"
    assert bound.engine_arguments() == {"distributed_executor_backend": "mp"}
    assert situation_of(Config()) == Situation() == CudaBackend().situation
    assert CudaBackend().engine_arguments() == {}


@pytest.mark.parametrize(
    ("visible", "rank", "index"),
    [(None, 3, 3), ("4,5,6,7", 2, 2), ("5", 3, 0), ("GPU-8f1c,GPU-22ab", 1, 1), ("MIG-1/0/0", 0, 0)],
    ids=["all", "some", "one", "uuid", "partition"],
)
def test_outside_of_ray_a_worker_takes_its_place_in_the_list(visible, rank, index, monkeypatch) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert CudaBackend().local_index(rank) == index


@pytest.mark.parametrize(("visible", "count"), [("0,1,GPU-8f1c", 3), ("", 0), ("2,-1,3", 1)])
def test_devices_are_counted_without_torch(visible: str, count: int, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert CudaBackend().count() == count
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert CudaBackend().count() == len(device_nodes())


# what Megatron's layers are made of ---------------------------------------------------------------------------------


def test_layers_follow_the_option_and_what_is_installed(tmp_path, monkeypatch) -> None:
    """A package of that name on the path is all that "auto" asks for; it is not imported."""
    assert (chosen("te"), chosen("plain")) == ("te", "plain")
    before = chosen("auto")
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine/__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert chosen("auto") == "te"
    assert before in ("te", "plain")


def test_a_transformer_engine_that_cannot_be_imported_is_an_error_of_one_sentence() -> None:
    with pytest.raises(VimeError, match="Transformer Engine cannot be imported: No module named 'transformer_engine"):
        require_transformer_engine()


def test_a_megatron_that_did_not_take_it_is_noticed(monkeypatch) -> None:
    """Megatron was imported here without Transformer Engine; a package of that name does not change what it bound."""
    specs: Any = pytest.importorskip("megatron.core.models.gpt.gpt_layer_specs")
    if getattr(specs, "HAVE_TE", False):
        pytest.skip("Transformer Engine is here")
    monkeypatch.delattr(specs, "TESpecProvider", raising=False)
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(VimeError, match="has no TESpecProvider although Transformer Engine is here"):
        require_transformer_engine()


def test_plain_modules_are_the_cores_and_nothing_else_of_megatron_is_touched() -> None:
    """In a process of its own: which of megatron's modules look different afterwards."""
    code = (
        "import megatron.core.utils as u, torch; from vime_cuda.backend import CudaBackend;"
        "from vime_cuda.environment import Situation; from vime_cuda.config import CudaOptions;"
        "d = CudaBackend(Situation(options=CudaOptions(trainer='plain'))); names = d.adapt_megatron();"
        "assert list(d.adapt_megatron()) == list(names);"
        "from megatron.core.models.gpt import gpt_layer_specs as g;"
        "print(sorted(names), g.TESpecProvider.__name__, u.torch is torch, sorted(d.megatron_overrides())[:1])"
    )
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    names, rest = run.stdout.strip().split("] ", 1)
    assert names.count(":") == 4
    assert "moe_utils:te_general_gemm" in names
    assert rest == "TorchSpecProvider True ['apply_rope_fusion']"


def test_transformer_engines_own_layers_need_no_override() -> None:
    device = CudaBackend(Situation(options=CudaOptions(trainer="te")))
    assert device.megatron_overrides() == {}
