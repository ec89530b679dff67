"""vime's trainer with ``--ascend-trainer plain``: real Megatron-core, the core's shims with device "npu", real
torch_npu. Losses and gradient norms have to be the CPU's, whatever the layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import emulated
import pytest

from tests.support.models import build_model

STEPS = """
import sys
from tests.support.train_ranks import make_batch, make_config
from vime_core.plugin.plugins import Plugins
from vime_core.training.worker import TrainerWorker

if os.environ["DEVICE"] == "npu":
    from vime_ascend.backend import AscendBackend as Device
else:
    from vime_core.devices.cpu import CpuBackend as Device
config = make_config(json.loads(os.environ["SECTIONS"]), world)
worker = TrainerWorker(config, Plugins.load(autoload=False), Device().bind(config), rank)
worker.setup(f"127.0.0.1:{os.environ['MASTER_PORT']}", os.environ["MODEL"], None, 100)
rows = [worker.train(step, make_batch(step)) for step in range(3)]
kinds = sorted({p.device.type for chunk in worker.model.chunks for p in chunk.parameters()})
exported = {name: round(float(t.double().sum()), 4) for name, t in worker.model.export_hf()}
score = worker.score([3, 7, 11, 20, 30])
print(json.dumps([kinds, [[r["train/loss"], r["train/grad_norm"]] for r in rows], score, exported]), flush=True)
os._exit(0)
"""

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "tensor": (2, {"megatron": {"tensor_model_parallel_size": 2, "sequence_parallel": True}}),
    "data": (2, {"megatron": {"use_distributed_optimizer": True}}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model") / "qwen3", "qwen3")


def trained(model: Path, device: str, world: int, sections: dict[str, Any]) -> list[Any]:
    more = {"MODEL": str(model), "DEVICE": device, "SECTIONS": json.dumps(sections)}
    return emulated.ranks(STEPS, world, **more)


@pytest.fixture(scope="module")
def cpu(model: Path) -> list[Any]:
    return trained(model, "cpu", 1, {})[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_on_it_is_training_on_the_cpu(model: Path, cpu: list[Any], layout: str) -> None:
    world, sections = LAYOUTS[layout]
    last = trained(model, "npu", world, sections)[-1]
    kinds, rows, score, exported = last
    assert kinds == ["npu"]
    for mine, theirs in zip(rows, cpu[1], strict=True):
        assert mine == pytest.approx(theirs, rel=2e-5, abs=2e-7)
    assert score == pytest.approx(cpu[2], rel=1e-4)
    assert exported == pytest.approx(cpu[3], rel=1e-3, abs=2e-3)
