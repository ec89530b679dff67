"""Train a few steps in real processes over gloo and print the metrics as JSON: one line a step.

    python -m tests.support.train_ranks MODEL_FOLDER '{"megatron": {"bf16": true}, ...}' WORLD STEPS [SEED [MORE]]

The batch is made from a seed, so every layout trains on the same samples. MORE is JSON: ``first`` (number of the first
step), ``resume`` and ``save`` (folder of a checkpoint to start from, and to leave), ``losses`` (folder for what each
step's loss is computed from).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.ranks import run_ranks
from vime_core.runtime.ports import free_port


def make_batch(seed: int, samples: int = 12, vocabulary: int = 97) -> Any:
    """Groups of three, ragged lengths, one sample without a trainable token, masked tails."""
    from vime_core.batch.step_batch import StepBatch

    rng = np.random.default_rng(seed)
    total = rng.integers(6, 40, samples)
    response = np.minimum(rng.integers(1, 20, samples), total - 2)
    mask = rng.random(response.sum()) > 0.15
    starts = np.concatenate([[0], np.cumsum(response)])
    mask[starts[4] : starts[5]] = False
    return StepBatch.of(
        tokens=rng.integers(3, vocabulary, total.sum()),
        total_lengths=total,
        response_lengths=response,
        mask=mask,
        rollout_logp=-rng.random(response.sum()) * 3,
        version=np.zeros(response.sum()),
        reward=rng.integers(0, 4, samples) / 2,
        group=np.arange(samples) // 3,
        rollout=np.arange(samples),
        truncated=np.zeros(samples),
    )


def make_config(sections: dict[str, dict[str, Any]], world: int) -> Any:
    from vime_core.config.sections import Config

    config = Config().replace("cluster", actor_num_gpus_per_node=world)
    config = config.replace("rollout", rollout_batch_size=4, n_samples_per_prompt=3)
    config = config.replace("train", use_dynamic_batch_size=True, max_tokens_per_gpu=128)
    config = config.replace("megatron", lr=1e-3)
    for section, values in sections.items():
        more = section == "megatron_extra"
        config = dataclasses.replace(config, megatron_extra=values) if more else config.replace(section, **values)
    return config


def rank_main(
    rank: int,
    world: int,
    port: int,
    folder: str,
    sections: dict[str, Any],
    steps: int,
    seed: int,
    more: Any,
    queue: Any,
) -> None:
    from vime_core.plugin.plugins import Plugins
    from vime_core.training.worker import TrainerWorker

    config = make_config(sections, world)
    plugins = Plugins.load(autoload=False)
    worker = TrainerWorker(config, plugins, plugins.choose_device(None).load()(), rank)
    worker.setup(f"127.0.0.1:{port}", folder, more.get("resume"), 100, more.get("losses"))
    first = more.get("first", 0)
    rows = [worker.train(step, make_batch(seed + step)) for step in range(first, first + steps)]
    score = worker.score([3, 7, 11, 20, 30])
    if "save" in more:
        Path(more["save"]).mkdir(parents=True, exist_ok=True)
        worker.save(more["save"])
    if rank == world - 1:
        queue.put({"rows": rows, "score": score})
    worker.close()


def main() -> None:
    folder, sections, world, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    more = json.loads(sys.argv[6]) if len(sys.argv) > 6 else {}
    run_ranks(rank_main, world, free_port("127.0.0.1"), folder, sections, steps, seed, more)


if __name__ == "__main__":
    main()
