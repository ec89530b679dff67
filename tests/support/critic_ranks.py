"""Train a critic a few steps in real processes over gloo and print what came of it as JSON.

    python -m tests.support.critic_ranks MODEL_FOLDER '{"megatron": {"lr": 1e-3}, ...}' WORLD STEPS [SAMPLES]

Prints the metrics of each step, and the values of a held-out batch before and after. The batches are made from seeds,
so every layout sees the same samples.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.multiprocessing

from tests.support.ranks import tell
from tests.support.train_ranks import make_batch, make_config
from vime_core.api.algorithm import Advantages, Algorithm
from vime_core.runtime.ports import free_port


class Targets(Algorithm):
    """Returns that need no critic to know them: the sample's reward, and ``bonus`` times the token's place modulo 3."""

    name = "targets"
    needs = frozenset({"values"})
    defaults: ClassVar[Mapping[str, Any]] = {"bonus": 0.1}

    def advantages(self, batch: Any, options: Mapping[str, Any]) -> Advantages:
        seg = batch.seg()
        place = torch.arange(batch.response_tokens) - torch.from_numpy(batch.response_starts)[seg]
        returns = batch.t("reward")[seg].float() + place % 3 * options["bonus"]
        return Advantages(returns - batch.t("values"), returns)

    def surrogate(self, view: Any, advantage: torch.Tensor, options: Mapping[str, Any]) -> Any:
        return -advantage * view.logp, {}


def plans_of(config: Any, layout: Any, batch: Any) -> Any:
    from vime_core.batch.plan import Packing, plan_steps

    return plan_steps(
        batch,
        Packing(
            dp_size=layout.dp_size,
            max_tokens=config.train.max_tokens_per_gpu * layout.cp_size,
            length_multiple=2 * layout.cp_size if layout.cp_size > 1 else 1,
        ),
        global_batch_size=len(batch),
    )


def values_of(critic: Any, plans: Any, batch: Any) -> Any:
    """[R]; zeros before the last stage."""
    from vime_core.batch.plan import forward_of

    found = critic.values(batch, forward_of(plans)[critic.runner.layout.dp_rank])
    return torch.zeros(batch.response_tokens) if found is None else found


def train(critic: Any, config: Any, batch: Any, clip: float = 0.2, bonus: float = 0.1) -> Any:
    """One step on the batch: the critic's values as they are, then its update."""
    from vime_core.algorithms.objective import Objective
    from vime_core.algorithms.prepare import prepare_step

    plans = plans_of(config, critic.runner.layout, batch)
    batch = batch.with_columns(values=values_of(critic, plans, batch))
    prepared = prepare_step(Objective(Targets(), {"bonus": bonus}, "rollout_mean"), batch)
    return critic.train(prepared.batch, plans, prepared, clip)


def rank_main(rank: int, world: int, port: int, folder: str, sections: Any, steps: int, samples: int) -> None:
    from vime_core.devices.cpu import CpuBackend
    from vime_core.training.critic import Critic
    from vime_core.training.parallel import destroy_parallel, init_parallel

    torch.set_num_threads(1)
    config, device = make_config(sections, world), CpuBackend()
    layout = init_parallel(config, device, rank, world, f"127.0.0.1:{port}")
    critic = Critic.build(config, device, layout, folder, 100)
    held_out, *batches = (make_batch(seed).take(range(samples)) for seed in (99, *range(steps)))
    plans = plans_of(config, layout, held_out)
    before = values_of(critic, plans, held_out)
    rows = [train(critic, config, batch) for batch in batches]
    after = values_of(critic, plans, held_out)
    if rank == world - 1:
        tell({"rows": rows, "before": before.tolist(), "after": after.tolist()})
    destroy_parallel()


def main() -> None:
    folder, sections, world, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    samples = int(sys.argv[5]) if len(sys.argv) > 5 else 12
    port = free_port("127.0.0.1")
    torch.multiprocessing.spawn(rank_main, (world, port, folder, sections, steps, samples), nprocs=world)


if __name__ == "__main__":
    main()
