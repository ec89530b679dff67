"""The critic of PPO: a model of its own on the actor's ranks and process groups, with its own optimizer.

It says the value of the state before each response token, and is fitted to the returns that the algorithm's advantages
computed. Plans, packing and token weights are the policy's, so loss and gradient do not depend on packing or on ranks
either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vime_core.algorithms import ValueColumns, micro_value_loss, value_quality
from vime_core.api import CheckpointError, TrainerError
from vime_core.training.forward_backward import ForwardBackward
from vime_core.training.model import MegatronModel
from vime_core.training.optimizer import Optimizer, mean_of_steps
from vime_core.training.packed import MicroBatch
from vime_core.training.rank_file import require_same
from vime_core.training.value_head import CriticOutput, response_values

if TYPE_CHECKING:
    from vime_core.algorithms import Pair, Prepared
    from vime_core.api import DeviceBackend
    from vime_core.batch import BatchPlan, StepBatch
    from vime_core.config import Config
    from vime_core.training.parallel import ParallelLayout

#: before every name of a critic's tensors in a checkpoint
_PREFIX = "critic."
_Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Critic:
    """Build it with :meth:`build`. Every method but loading and ``state`` is a collective of all trainer ranks."""

    runner: ForwardBackward
    optimizer: Optimizer

    @classmethod
    def build(
        cls, config: Config, device: DeviceBackend, layout: ParallelLayout, folder: str, total_steps: int
    ) -> Critic:
        """Model and optimizer, weights loaded.

        Args:
            folder: Hugging Face folder to start from where ``critic_load`` names no other.
            total_steps: optimizer steps that the critic takes in this run.

        Raises:
            ConfigError, CheckpointError: the folder does not fit, as in :class:`MegatronModel`.
        """
        source = config.model.critic_load or folder
        model = MegatronModel.build(config, device, source, trainable=True, output_layer=CriticOutput())
        model.load_hf()
        rate = config.megatron.lr if config.model.critic_lr is None else config.model.critic_lr
        optimizer = Optimizer.build(config.replace("megatron", lr=rate), model.chunks, total_steps)
        return cls(ForwardBackward(model, layout, device.torch_device()), optimizer)

    @property
    def model(self) -> MegatronModel:
        return self.runner.model

    def values(self, batch: StepBatch, micro_batches: Sequence[Sequence[int]]) -> torch.Tensor | None:
        """[R] float32 on the CPU: the value of the state before each response token, gathered over data and context
        ranks; None before the last pipeline stage. Never divided by a temperature.

        Args:
            micro_batches: this data-parallel rank's, as in ``LogprobRunner.logprobs``.

        Raises:
            TrainerError: the batch has token ids that the critic's vocabulary lacks.
        """
        self._check_tokens(batch)

        def finish(micro: MicroBatch, values: torch.Tensor) -> tuple[torch.Tensor, Any]:
            return values[:0].sum(), (micro.positions, values.detach(), micro.is_dummy)

        parts = self.runner.through(batch, micro_batches, _values, finish, gradient=False)
        return self.runner.gather(batch.response_tokens, parts)

    def train(
        self, batch: StepBatch, plans: Sequence[BatchPlan], prepared: Prepared, value_clip: float
    ) -> dict[str, float]:
        """One optimizer step a plan, towards ``prepared.returns``, clipped around the batch's column ``values``.

        Returns:
            Metrics under their catalogue names (complete on the last pipeline stage), averaged over the plans.

        Raises:
            TrainerError: the algorithm gave no returns.
        """
        if prepared.returns is None:
            raise TrainerError("a critic is trained on returns, and the algorithm gave none (see Advantages)")
        old, returns = batch.t("values"), prepared.returns
        done = [self._update(prepared, plan, (old, returns), value_clip) for plan in plans]
        found = value_quality(old, returns, prepared.mask) if self.runner.layout.is_last_stage else {}
        return {f"train/{name}": value for name, value in found.items()} | _named(mean_of_steps(done))

    def _update(self, prepared: Prepared, plan: BatchPlan, columns: Sequence[torch.Tensor], clip: float) -> _Metrics:
        """One optimizer step; columns: [R] each, old values and returns."""
        for chunk in self.model.chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]  # Megatron's DistributedDataParallel
        self.optimizer.zero_grad()
        whole = (*columns, prepared.weight(plan.samples).float(), prepared.mask)

        def loss(micro: MicroBatch, values: torch.Tensor) -> tuple[torch.Tensor, Mapping[str, Pair]]:
            positions = micro.positions[:0] if micro.is_dummy else micro.positions
            here = ValueColumns(*(column[positions].to(values.device) for column in whole))
            return micro_value_loss(values[: len(positions)], here, clip)

        micro_batches = plan.micro_batches[self.runner.layout.dp_rank]
        parts = self.runner.through(prepared.batch, micro_batches, _values, loss, gradient=True)
        return {**self.runner.total(parts), **self.optimizer.step_on(whole[2])}

    def _check_tokens(self, batch: StepBatch) -> None:
        largest = int(batch.tokens.max())
        if largest >= self.model.vocab_size:
            raise TrainerError(
                f"token id {largest} is not in the critic's vocabulary of {self.model.vocab_size} "
                f"({self.model.hf_folder}): give --critic-load a model with the policy's tokenizer"
            )

    # checkpoints ---------------------------------------------------------------------------------------------
    def tensors(self, optimizer: bool = True) -> dict[str, torch.Tensor]:
        """What this rank keeps, by stable names: weights, and with ``optimizer`` its state."""
        self.model.wait_param_gather()
        found = self.model.tensors() | (self.optimizer.tensors() if optimizer else {})
        return {_PREFIX + name: tensor for name, tensor in found.items()}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor], optimizer: bool = True) -> None:
        """Put back what :meth:`tensors` gave (others in ``tensors`` are left alone); same layout only. Without
        ``optimizer`` its own copy of the weights follows them.

        Raises:
            CheckpointError: there are none, or no optimizer state.
        """
        mine = {name.removeprefix(_PREFIX): x for name, x in tensors.items() if name.startswith(_PREFIX)}
        if not mine:
            raise CheckpointError("the checkpoint has no critic: it was saved by a run without one; start a new run")
        weights = self.model.tensors()
        require_same("the checkpoint's critic", weights, {n: x for n, x in mine.items() if n.startswith("model.")})
        with torch.no_grad():
            for name, tensor in weights.items():
                tensor.copy_(mine[name])
        if not optimizer:
            self.optimizer.inner.reload_model_params()
            return
        kept = {name: x for name, x in mine.items() if name.startswith("optimizer.")}
        if not kept:
            raise CheckpointError(
                "the checkpoint has no optimizer state of the critic (saved with --no-save-optim): add --no-load-optim"
            )
        self.optimizer.load_tensors(kept)

    def state(self) -> dict[str, Any]:
        """The rest of its state, as JSON."""
        return {"scheduler": self.optimizer.scheduler.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.optimizer.scheduler.num_steps = int(state["scheduler"]["num_steps"])
        self.optimizer.scheduler.step(0)

    def save_hf(self, folder: str) -> None:
        """A Hugging Face folder that ``critic_load`` takes: the body, and the head as ``score.weight``."""
        self.model.save_hf(folder)


def _named(metrics: _Metrics) -> dict[str, float]:
    """Under catalogue names: those of an update are told apart from the policy's."""
    own = {name if name.startswith("value_") else f"critic-{name}": x for name, x in metrics.items()}
    return {f"train/{name}": x for name, x in own.items()}


def _values(chunk: Any, hidden: torch.Tensor, micro: MicroBatch) -> torch.Tensor:
    return response_values(chunk, hidden, micro.packed)
