"""One trainer rank: process groups, model, optimizer, and the calls of the driver. Every call is a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vime_core.algorithms import Objective
from vime_core.api import CheckpointError, WeightSync
from vime_core.batch import StepBatch
from vime_core.plugin import load_target, make
from vime_core.training.forward_backward import LogprobRunner
from vime_core.training.logprobs import ChunkedSoftmax
from vime_core.training.loss_record import LossRecord, plain
from vime_core.training.memory import TrainerMemory
from vime_core.training.model import MegatronModel
from vime_core.training.optimizer import Optimizer
from vime_core.training.parallel import destroy_parallel, init_parallel
from vime_core.training.rank_file import read_rank, require_same, write_rank
from vime_core.training.reference_models import ReferenceModels, reference_model_folders
from vime_core.training.replay_routers import make_replay
from vime_core.training.step import Columns, TrainStep

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config
    from vime_core.training.critic import Critic
    from vime_core.training.memory import Part


class TrainerWorker:
    """Built in the rank's own process; :meth:`setup` does the work."""

    def __init__(self, config: Config, plugins: Any, device: DeviceBackend, rank: int) -> None:
        self.config, self.plugins, self.device, self.rank = config, plugins, device, rank
        self.publisher: Any = None

    def setup(
        self, address: str, folder: str, resume: str | None, total_steps: int, losses: str | None = None
    ) -> dict[str, Any]:
        """Join the process groups, build the model from ``folder``, load weights (and the state in ``resume``).

        Args:
            address: ``host:port`` where the ranks meet.
            losses: folder that the inputs of each step's loss are kept in; None keeps none.

        Returns:
            ``parameters`` of the whole model's share on this rank, and the ``learning_rate`` now.
        """
        torch.set_num_threads(self.config.cluster.trainer_cpu_threads)
        objective = self._objective()
        needs = objective.needs
        others = reference_model_folders(self.config, needs, folder)
        self.device.adapt_megatron()
        self.device.set_device(self.device.local_index(self.rank % self.config.cluster.actor_num_gpus_per_node))
        self.layout = init_parallel(self.config, self.device, self.rank, self.config.trainer_ranks, address)
        self.model = MegatronModel.build(self.config, self.device, folder, trainable=True)
        self.model.load_hf()
        self.reference_models = ReferenceModels.load(self.config, self.model, self.device, others)
        self.optimizer = Optimizer.build(self.config, self.model.chunks, total_steps)
        self.critic: Critic | None = None
        if "values" in needs:
            from vime_core.training.critic import Critic

            self.critic = Critic.build(self.config, self.device, self.layout, folder, total_steps)
        if resume is not None:
            self._load(Path(resume))
        critics = [] if self.critic is None else [(self.critic.model, self.critic.optimizer)]
        self.memory = TrainerMemory(self.device, [(self.model, self.optimizer), *critics])
        self.step = self._train_step(objective, losses)
        parameters = sum(p.numel() for chunk in self.model.chunks for p in chunk.parameters())
        return {"parameters": parameters, **self.optimizer.learning_rates()}

    def _objective(self) -> Objective:
        name, algorithms = self.config.algorithm.advantage_estimator, self.plugins.algorithms
        name = "sft" if self._supervised else name
        algorithm = make(f"algorithm {name!r}{algorithms.source(name)}", algorithms.resolve(name))
        objective = Objective.of(self.config, algorithm, self.plugins.corrections.resolve)
        named = [replace(one, source=self.plugins.corrections.source(one.name)) for one in objective.corrections]
        return replace(objective, source=algorithms.source(name), corrections=named)

    @property
    def _supervised(self) -> bool:
        return self.config.train.loss_type == "sft_loss"

    def _train_step(self, objective: Objective, losses: str | None) -> TrainStep:
        passes = LogprobRunner(
            model=self.model,
            layout=self.layout,
            device=self.device.torch_device(),
            softmax=ChunkedSoftmax(
                temperature=1.0 if self._supervised else self.config.rollout.rollout_temperature,
                chunk_size=self.config.train.log_probs_chunk_size,
            ),
            replay=make_replay(self.config, self.model.modules, self.device.torch_device()),
        )
        facts = {
            "algorithm": objective.algorithm.name,
            "options": plain(objective.options),
            "temperature": passes.softmax.temperature,
            "global_batch": self.config.global_batch,
            "terms": plain(objective.loss_config),
        }
        return TrainStep(
            self.config,
            passes,
            self.optimizer,
            objective,
            Columns(passes, self.reference_models, self.critic),
            LossRecord(Path(losses), facts) if losses is not None and self.layout.keeps_records else None,
        )

    def train(self, step: int, batch: StepBatch) -> dict[str, float]:
        """Train on the samples of rollout step ``step``; metrics under their catalogue names."""
        self.memory.require("weights", "rest")
        return self.step.run(step, batch)

    def publish(self, version: int) -> Any:
        """Make the weights available to the engines; the manifest on ranks that send, None elsewhere."""
        self.memory.require("weights")
        tensors = self.model.export_hf()
        if not self._sends():
            for _ in tensors:  # the export is a collective: every rank must walk through it
                pass
            return None
        return self._publisher().publish(tensors, version)

    def open(self, terms: Mapping[str, Any]) -> None:
        """Tell a sending rank's publisher where and with whom it will meet; not a collective."""
        if self._sends():
            self._publisher().open(terms)

    def _sync(self) -> type[WeightSync]:
        name = self.config.sync.weight_sync
        return self.plugins.weight_syncs.resolve(name) if name else WeightSync

    def _sends(self) -> bool:
        return self.rank == 0 or self._sync().every_rank_sends

    def _publisher(self) -> Any:
        if self.publisher is None:
            make = load_target(self._sync().publisher)
            self.publisher = make(self.config, self.config.sync.weight_sync or "")
        return self.publisher

    def score(self, tokens: list[int]) -> list[float] | None:
        """Log-probs [len(tokens) - 1] of tokens[1:] at temperature 1; None before the last pipeline stage."""
        self.memory.require("weights")
        batch = probe(tokens)
        with self.step.passes.replay.off():  # no engine says what it chose for these tokens
            logp = self.step.passes.logprobs(batch, self.step.unbounded(batch), temperature=1.0)
        return None if logp is None else logp.tolist()

    # memory --------------------------------------------------------------------------------------------------
    def offload(self, parts: Sequence[Part]) -> int:
        """Give the device memory of ``parts`` ("weights", "rest") to others; bytes given up."""
        return self.memory.offload(parts)

    def onload(self, parts: Sequence[Part]) -> int:
        """Take it again, with what was in it; bytes taken."""
        return self.memory.onload(parts)

    # checkpoints ---------------------------------------------------------------------------------------------
    def save(self, folder: str) -> int:
        """Write this rank's part; bytes written."""
        self.memory.require("weights", "rest")
        optimizer = self.config.model.save_optim
        tensors = (
            self.model.tensors() | (self.optimizer.tensors() if optimizer else {}) | self.reference_models.tensors()
        )
        state = {"scheduler": self.optimizer.scheduler.state_dict()}
        if self.critic is not None:
            tensors |= self.critic.tensors(optimizer)
            state["critic"] = self.critic.state()
        tensors["rng.torch"] = torch.get_rng_state()
        tensors["rng.device"] = self.device.get_rng_state()
        return write_rank(Path(folder), self.rank, tensors, state)

    def _load(self, folder: Path) -> None:
        tensors, state = read_rank(folder, self.rank)
        mine = self.model.tensors()
        kept = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
        require_same(folder, mine, kept)
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(kept[name])
        optimizer = self.config.model.load_optim
        if optimizer:
            self._load_optimizer(folder, tensors, state)
        else:
            self.optimizer.inner.reload_model_params()
        self.reference_models.resume(tensors)
        if self.critic is not None:
            self.critic.load_tensors(tensors, optimizer)
            if optimizer:
                self.critic.load_state(state["critic"])
        torch.set_rng_state(tensors["rng.torch"])
        self.device.set_rng_state(tensors["rng.device"])

    def _load_optimizer(self, folder: Path, tensors: dict[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        mine = {k: v for k, v in tensors.items() if k.startswith("optimizer.")}
        if not mine:
            raise CheckpointError(
                f"{folder} holds no optimizer state (it was saved with --no-save-optim): add --no-load-optim"
            )
        self.optimizer.load_tensors(mine)
        self.optimizer.scheduler.num_steps = int(state["scheduler"]["num_steps"])
        self.optimizer.scheduler.step(0)

    def save_hf(self, folder: str) -> None:
        """Write a Hugging Face checkpoint (rank 0 writes, all take part)."""
        self.memory.require("weights")
        self.model.save_hf(folder)

    def close(self) -> None:
        if self.publisher is not None:
            self.publisher.close()
        destroy_parallel()


def probe(tokens: list[int]) -> StepBatch:
    """A batch of one sample whose first token is the prompt."""
    n = len(tokens) - 1
    return StepBatch.of(
        tokens=tokens,
        total_lengths=[n + 1],
        response_lengths=[n],
        mask=np.ones(n),
        rollout_logp=np.full(n, np.nan),
        version=np.full(n, -1),
        reward=[np.nan],
        group=[0],
        rollout=[0],
        truncated=[False],
    )
