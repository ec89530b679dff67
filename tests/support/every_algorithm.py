"""Two steps of every case, one after the other, in the same real processes over gloo.

    python -m tests.support.every_algorithm MODEL_FOLDER OTHER_FOLDER '{"megatron": {...}}' WORLD

A case is a registered algorithm, GRPO under one of the aggregations, or GRPO with its score centered. Prints
``RESULT {case: [metrics of each step]}``. OTHER_FOLDER is the reference and the teacher. The batch holds
what breaks averages: a group of one, a group of equal rewards, an empty response, a masked sample, masked tails, NaN
under the mask, and so few trainable samples in the second step that a rank gets none.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from tests.support.ranks import run_ranks
from tests.support.train_ranks import make_config
from vime_core.runtime.ports import free_port

#: options beyond the name, by algorithm
OPTIONS: dict[str, dict[str, Any]] = {
    "ppo": {"kl_coef": 0.1, "lambd": 0.9, "gamma": 0.97},
    "reinforce_plus_plus": {"kl_coef": 0.1},
    "reinforce_plus_plus_baseline": {"kl_coef": 0.1},
    "opd": {"opd_type": "megatron"},
}
#: the terms around every algorithm but those whose own options exclude them
TERMS = {"use_kl_loss": True, "kl_loss_coef": 0.05, "kl_loss_type": "k3", "entropy_coef": 0.01, "use_tis": True}
#: of score centering: the log-probs of further tokens at each place go into the loss
CENTRED = {"pg_loss_type": "reinforce", "use_score_centering": True, "score_centering_top_k": 4, "use_tis": True}


def names() -> list[str]:
    """``algorithm`` or ``algorithm:variant``."""
    from vime_core.batch.aggregate import AGGREGATIONS
    from vime_core.plugin.plugins import Plugins

    algorithms = [p.name for p in Plugins.load(autoload=False, environ={}).algorithms if p.name != "sft"]
    return [*algorithms, *(f"grpo:{aggregation}" for aggregation in AGGREGATIONS), "grpo:centered"]


def tricky_batch(step: int, vocabulary: int = 97, centered: bool = False) -> Any:
    """12 samples in groups of 3, 1, 3, 3, 2. In step 1 all but one sample are masked."""
    from vime_core.api.streams import TOP_IDS, TOP_LOGP
    from vime_core.batch.step_batch import StepBatch

    rng = np.random.default_rng(step)
    total = rng.integers(8, 40, 12)
    response = np.minimum(rng.integers(2, 20, 12), total - 2)
    response[5] = 0
    starts = np.concatenate([[0], np.cumsum(response)])
    mask = rng.random(response.sum()) > 0.2
    mask[starts[2] : starts[3]] = False
    mask[starts[7] + 1 : starts[8]] = False
    mask[starts[7]] = True
    if step == 1:
        mask[: starts[11]] = False
        mask[starts[11]] = True
    reward = rng.integers(0, 4, 12) / 2
    reward[4:7] = 0.5
    likeliest = np.argsort(rng.random((response.sum(), vocabulary)), axis=1)[:, :4]
    head = np.where(mask[:, None], np.log(rng.dirichlet(np.ones(5), response.sum())[:, :4]), np.nan)
    return StepBatch.of(
        extra={TOP_IDS.name: ("response", likeliest), TOP_LOGP.name: ("response", head)} if centered else None,
        tokens=rng.integers(3, vocabulary, total.sum()),
        total_lengths=total,
        response_lengths=response,
        mask=mask,
        rollout_logp=np.where(mask, -rng.random(response.sum()) * 3, np.nan),
        version=np.zeros(response.sum()),
        reward=reward,
        group=np.repeat([7, 3, 9, 1, 5], [3, 1, 3, 3, 2]),
        rollout=np.arange(12) + 100,
        truncated=rng.random(12) < 0.2,
    )


def train(name: str, folder: str, other: str, sections: dict[str, Any], world: int, rank: int, port: int) -> Any:
    from vime_core.plugin.plugins import Plugins
    from vime_core.training.worker import TrainerWorker

    algorithm, _, variant = name.partition(":")
    centered = variant == "centered"
    own = OPTIONS.get(name, {}) | (CENTRED if centered else {})
    terms = {} if "kl_coef" in own else TERMS
    sections = {
        **sections,
        "algorithm": {"advantage_estimator": algorithm, **terms, **own},
        "train": {**sections["train"], "aggregation": None if centered else variant or None},
        "model": {"ref_load": other, "opd_teacher_load": other if "opd_type" in own else None},
        "rollout": {"rollout_batch_size": 4, "n_samples_per_prompt": 3, "rollout_max_response_len": 24},
    }
    plugins = Plugins.load(autoload=False, environ={})
    worker = TrainerWorker(make_config(sections, world), plugins, plugins.choose_device("cpu").load()(), rank)
    try:
        worker.setup(f"127.0.0.1:{port}", folder, None, 100)
        return [worker.train(step, tricky_batch(step, centered=centered)) for step in range(2)]
    finally:
        worker.close()


def rank_main(
    rank: int, world: int, ports: list[int], folder: str, other: str, sections: dict[str, Any], queue: Any
) -> None:
    found = {name: train(name, folder, other, sections, world, rank, p) for name, p in zip(names(), ports)}
    if rank == world - 1:
        queue.put(found)


def main() -> None:
    folder, other, sections, world = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    ports = [free_port("127.0.0.1") for _ in names()]
    run_ranks(rank_main, world, ports, folder, other, sections, seconds=540.0)


if __name__ == "__main__":
    main()
