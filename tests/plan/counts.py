"""What Megatron itself says of ranks: coordinates, and parameters of the model that the trainer builds.

    python -m tests.plan.counts

Every rank of a layout is built in this one process, one after another, over process groups that carry nothing (torch's
"fake" backend); nothing is sent while a model is built.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state as ps
from megatron.core import tensor_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.plan.layouts import CASES, config_of
from tests.plan.shapes import SHAPES
from tests.support.ranks import tell
from vime_core.plugin.plugins import Plugins
from vime_core.training.model import MegatronModel
from vime_core.training.value_head import CriticOutput


def main() -> None:
    device = Plugins.load(autoload=False).choose_device("cpu").load()()
    device.adapt_megatron()
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(shape))
        tell({name: _ranks(name, Path(folder), device) for name in CASES})


def _ranks(name: str, folder: Path, device: Any) -> list[dict[str, Any]]:
    world = CASES[name].world
    return [_rank(name, rank, world, folder, device) for rank in range(world)]


def _rank(name: str, rank: int, world: int, folder: Path, device: Any) -> dict[str, Any]:
    case, config = CASES[name], config_of(name)
    m = config.megatron
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    ps.initialize_model_parallel(
        tensor_model_parallel_size=m.tensor_model_parallel_size,
        pipeline_model_parallel_size=m.pipeline_model_parallel_size,
        context_parallel_size=m.context_parallel_size,
        expert_model_parallel_size=m.expert_model_parallel_size,
        expert_tensor_parallel_size=m.expert_tensor_parallel_size,
        create_gloo_process_groups=False,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    head = CriticOutput() if case.critic else None
    model = MegatronModel.build(config, device, str(folder / case.shape), trainable=False, output_layer=head)
    parameters = sum(p.numel() for chunk in model.chunks for p in chunk.parameters())
    found = {
        "parameters": parameters,
        "tp": ps.get_tensor_model_parallel_rank(),
        "cp": ps.get_context_parallel_rank(),
        "dp": ps.get_data_parallel_rank(),
        "pp": ps.get_pipeline_model_parallel_rank(),
        "ep": ps.get_expert_model_parallel_rank(),
        "etp": ps.get_expert_tensor_parallel_rank(),
        "edp": ps.get_expert_data_parallel_world_size(),
    }
    ps.destroy_model_parallel()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    main()
