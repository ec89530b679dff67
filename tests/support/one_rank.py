"""A trainer of one rank inside this process: what train_ranks.py does in processes of their own, in a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.train_ranks import make_batch, make_config
from vime_core.batch.step_batch import StepBatch
from vime_core.runtime.ports import free_port


def train(
    folder: str,
    steps: int,
    *,
    first: int = 0,
    resume: Path | None = None,
    save: Path | None = None,
    losses: Path | None = None,
    between: Callable[[Any], None] = lambda worker: None,
    batch_of: Callable[[int], StepBatch] = make_batch,
    **sections: dict[str, Any],
) -> dict[str, Any]:
    """``rows``: metrics of each step. ``scores``: log-probs of a probe before the first step and after each.

    Args:
        first: number of the first step; step k trains on batch k, which is
            ``batch_of(k)``. resume, save: folder of a checkpoint to start from
            and to leave. losses: folder for what each step's loss is computed from. between: gets the worker before
            each step.
        sections: values of configuration sections.
    """
    from vime_core.plugin.plugins import Plugins
    from vime_core.training.worker import TrainerWorker

    plugins = Plugins.load(autoload=False)
    worker = TrainerWorker(make_config(sections, 1), plugins, plugins.choose_device("cpu").load()(), 0)
    try:
        worker.setup(f"127.0.0.1:{free_port('127.0.0.1')}", folder, _text(resume), 100, _text(losses))
        rows, scores = [], [_score(worker)]
        for step in range(first, first + steps):
            between(worker)
            rows.append(worker.train(step, batch_of(step)))
            scores.append(_score(worker))
        if save is not None:
            save.mkdir(parents=True)
            worker.save(str(save))
    finally:
        worker.close()
    return {"rows": rows, "scores": scores}


def _score(worker: Any) -> list[float]:
    return worker.score([3, 7, 11, 20, 30])


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def without_times(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith("perf/")}
