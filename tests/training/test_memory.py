"""A trainer whose memory goes to the host between steps, and comes back, trains what one does that keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.support.one_rank import train, without_times
from vime_core.api.errors import TrainerError
from vime_core.training.memory import PARTS
from vime_core.training.offload import storages

PROBE = [3, 7, 11, 20, 30]
KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "distributed": {"megatron": {"use_distributed_optimizer": True, "lr": 1e-3}},
    "bfloat16": {"megatron": {"bf16": True, "lr": 1e-3}},
    "distributed-bfloat16": {"megatron": {"bf16": True, "use_distributed_optimizer": True, "lr": 1e-3}},
    "critic": {"algorithm": {"advantage_estimator": "ppo", "lambd": 0.9}},
    "reference": {"algorithm": {"use_kl_loss": True, "kl_loss_coef": 0.1}, "model": {"ref_update_interval": 1}},
}


def bytes_of(worker: Any, what: str) -> int:
    """Bytes in memory now of all weights, or of everything else that is parked."""
    models = [(worker.model, worker.optimizer)]
    if worker.critic is not None:
        models.append((worker.critic.model, worker.critic.optimizer))
    weights = storages(tensor for model, _ in models for tensor in model.tensors().values())
    if what == "weights":
        return sum(storage.nbytes() for storage in weights)
    mine = {storage._cdata for storage in weights}
    others = [tensor for model, optimizer in models for tensor in (*model.gradients(), *optimizer.tensors().values())]
    return sum(storage.nbytes() for storage in storages(others) if storage._cdata not in mine)


def through_all_states(worker: Any) -> None:
    """As a colocated step does, with the memory counted at every turn."""
    before = {part: bytes_of(worker, part) for part in PARTS}
    assert before["weights"] > 0
    score = worker.score(PROBE)
    assert worker.offload(["rest"]) >= before["rest"] > 0
    assert bytes_of(worker, "rest") == 0
    assert bytes_of(worker, "weights") == before["weights"]
    assert worker.score(PROBE) == score  # the weights alone are enough for a sync
    with pytest.raises(TrainerError, match="optimizer and gradients are in host memory"):
        worker.save("nowhere")
    assert worker.offload(PARTS) == before["weights"]
    assert bytes_of(worker, "weights") == 0
    assert worker.offload(PARTS) == 0
    for work in (lambda: worker.score(PROBE), lambda: worker.publish(1), lambda: worker.save_hf("nowhere")):
        with pytest.raises(TrainerError, match="trainer's weights are in host memory"):
            work()
    assert worker.onload(["weights"]) == before["weights"]
    assert worker.score(PROBE) == score
    worker.onload(PARTS)
    assert worker.onload(PARTS) == 0
    assert bytes_of(worker, "weights") == before["weights"]


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_same_to_the_bit(folders: dict[str, str], tmp_path: Path, kind: str) -> None:
    stays = train(folders["policy"], 3, save=tmp_path / "stays", **KINDS[kind])
    turns = train(folders["policy"], 3, save=tmp_path / "turns", between=through_all_states, **KINDS[kind])
    assert [without_times(row) for row in turns["rows"]] == [without_times(row) for row in stays["rows"]]
    assert turns["scores"] == stays["scores"]
    assert stays["scores"][0] != stays["scores"][-1]
    saved = [load_file(next((tmp_path / name).glob("*.safetensors"))) for name in ("stays", "turns")]
    assert saved[0].keys() == saved[1].keys()
    assert all(saved[0][name].equal(saved[1][name]) for name in saved[0])
