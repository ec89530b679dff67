"""One rollout step of training on this rank: the columns still needed, the algorithm's stages, then optimizer steps.

Every rank holds the whole batch and computes the same plan, so the stages that look at the whole step (advantages,
weights, corrections) need no communication; micro-batches are this rank's rows of the plan. The loss of a micro-batch
is a plain sum and Megatron adds gradients up, so the result does not depend on how samples were packed or dealt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vime_core.algorithms import (
    MicroBatchSlice,
    Objective,
    Prepared,
    TokenColumns,
    micro_loss,
    prepare_step,
)
from vime_core.api import TOP_IDS
from vime_core.batch import BatchPlan, Packing, forward_of, plan_forward, plan_steps
from vime_core.config import virtual_stages
from vime_core.training.loss_record import OptimizerStep
from vime_core.training.mismatch import mismatch
from vime_core.training.optimizer import mean_of_steps
from vime_core.training.reference_models import TEACHER

if TYPE_CHECKING:
    from vime_core.algorithms import Pair, Reduce
    from vime_core.batch import StepBatch
    from vime_core.config import Config
    from vime_core.training.critic import Critic
    from vime_core.training.forward_backward import LogprobRunner
    from vime_core.training.logprobs import ResponseLogprobs
    from vime_core.training.loss_record import LossRecord
    from vime_core.training.optimizer import Optimizer
    from vime_core.training.packed import MicroBatch
    from vime_core.training.reference_models import ReferenceModels


@dataclass(frozen=True)
class Columns:
    """Adds the columns that the trainer itself computes, before the algorithm's stages: log-probs of the policy before
    the step, of the reference and of the teacher, and a critic's values. One forward pass each, packed as in training
    unless asked otherwise, so that models with equal weights give numbers that are equal to the bit.

    Every rank takes part; ranks of stages before the last get zeros, which nobody there reads but which let them run
    the same whole-step code.
    """

    passes: LogprobRunner
    reference_models: ReferenceModels
    critic: Critic | None = None

    def fill(
        self, batch: StepBatch, mine: Sequence[Sequence[int]], *, old_logp: bool
    ) -> tuple[StepBatch, dict[str, float]]:
        """(the batch with every column, seconds of each pass under its metric's name).

        Args:
            mine: this data-parallel rank's micro-batches of the whole rollout step.
            old_logp: the policy's own log-probs are wanted before the stages.
        """
        times: dict[str, float] = {}
        for name, column in self.reference_models.columns():
            clock = time.monotonic()
            # a teacher's experts are others than the policy's; the reference's are former ones of the policy
            own = self.passes.replay.off() if name == TEACHER else nullcontext()
            with self.reference_models.sets.use(name), own:
                batch = batch.with_columns(**{column: self._whole(batch, self.passes.logprobs(batch, mine))})
            times[f"perf/{name}_log_probs_time"] = time.monotonic() - clock
        if self.critic is not None:
            clock = time.monotonic()
            batch = batch.with_columns(values=self._whole(batch, self.critic.values(batch, mine)))
            times["perf/values_time"] = time.monotonic() - clock
        clock = time.monotonic()
        if old_logp or self.passes.replay.needs_old_logp:
            with self.passes.replay.recording():
                batch = batch.with_old_logp(self._whole(batch, self.passes.logprobs(batch, mine)))
        return batch, {**times, "perf/log_probs_time": time.monotonic() - clock}

    @staticmethod
    def _whole(batch: StepBatch, column: torch.Tensor | None) -> torch.Tensor:
        return torch.zeros(batch.response_tokens) if column is None else column


@dataclass
class TrainStep:
    """Trains on step batches. ``record`` is where the inputs of the loss are kept, on the one rank that keeps them."""

    config: Config
    passes: LogprobRunner
    optimizer: Optimizer
    objective: Objective
    columns: Columns
    record: LossRecord | None = None

    def run(self, step: int, batch: StepBatch) -> dict[str, float]:
        """Train on the batch of rollout step ``step``; metrics under their catalogue names (complete on the last
        pipeline stage)."""
        plans = self._plan(batch)
        self.passes.replay.check(batch)
        self.columns.reference_models.before_step(step)
        old_logp = self.objective.wants_old_logp(len(plans))
        batch, times = self.columns.fill(batch, self._forward(batch, plans), old_logp=old_logp)
        prepared = prepare_step(self.objective, batch)
        metrics = {f"train/{name}": value for name, value in prepared.metrics.items()}
        metrics |= self._train_critic(prepared, plans)
        if not self._critic_alone(step):
            metrics |= self._train_policy(step, batch, prepared, plans)
        return {**metrics, **self._packing(batch, plans), **times}

    def _critic_alone(self, step: int) -> bool:
        return self.columns.critic is not None and step < self.config.algorithm.num_critic_only_steps

    def _train_critic(self, prepared: Prepared, plans: Sequence[BatchPlan]) -> dict[str, float]:
        critic = self.columns.critic
        if critic is None:
            return {}
        clock = time.monotonic()
        metrics = critic.train(prepared.batch, plans, prepared, self.objective.options.get("value_clip", math.inf))
        critic.model.wait_param_gather()
        return {**metrics, "perf/critic_train_time": time.monotonic() - clock}

    def _train_policy(
        self, step: int, batch: StepBatch, prepared: Prepared, plans: Sequence[BatchPlan]
    ) -> dict[str, float]:
        clock = time.monotonic()
        done = [self._optimizer_step(prepared, plan) for plan in plans]
        self.passes.model.wait_param_gather()
        metrics = {f"train/{name}": value for name, value in mean_of_steps([one.metrics for one in done]).items()}
        metrics["perf/actor_train_time"] = time.monotonic() - clock
        metrics |= self.passes.replay.metrics()
        if self.passes.layout.is_last_stage:
            logp = self._collected(prepared.batch, done)
            metrics |= self._mismatch(prepared.batch, logp, plans)
            if self.record is not None:
                self.record.write(step, batch, prepared, done, logp)
        return metrics

    def _mismatch(self, batch: StepBatch, logp: torch.Tensor, plans: Sequence[BatchPlan]) -> dict[str, float]:
        """By the log-probs before the step: the old ones, else those that the first optimizer step met."""
        loss_config = self.objective.loss_config
        if batch.old_logp is not None and not loss_config.use_rollout_logprobs:
            return mismatch(batch, batch.t("old_logp"), detailed=loss_config.get_mismatch_metrics)
        return mismatch(batch, logp, samples=plans[0].samples, detailed=loss_config.get_mismatch_metrics)

    def _plan(self, batch: StepBatch) -> list[BatchPlan]:
        return plan_steps(batch, self._packing_of(self.config.train.max_tokens_per_gpu), self.config.global_batch)

    def _forward(self, batch: StepBatch, plans: Sequence[BatchPlan]) -> Sequence[Sequence[int]]:
        """This rank's micro-batches of passes without gradient: those of training, or of a size of their own."""
        cap, rank = self.config.train.log_probs_max_tokens_per_gpu, self.passes.layout.dp_rank
        return (forward_of(plans) if cap is None else plan_forward(batch, self._packing_of(cap)))[rank]

    def unbounded(self, batch: StepBatch) -> Sequence[Sequence[int]]:
        """This rank's micro-batches of a batch of few tokens, whatever the cap; the first sample is rank 0's."""
        return plan_forward(batch, self._packing_of(None))[self.passes.layout.dp_rank]

    def _packing_of(self, cap: int | None) -> Packing:
        train, layout = self.config.train, self.passes.layout
        return Packing(
            dp_size=layout.dp_size,
            max_tokens=cap * layout.cp_size if cap and train.use_dynamic_batch_size else None,
            micro_batch_size=train.micro_batch_size,
            balance="cost" if train.balance_data else "order",
            multiple_of=layout.pp_size if virtual_stages(self.config) > 1 else 1,
            length_multiple=2 * layout.cp_size if layout.cp_size > 1 else 1,
        )

    def _optimizer_step(self, prepared: Prepared, plan: BatchPlan) -> _Done:
        for chunk in self.passes.model.chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]  # Megatron's DistributedDataParallel
        self.optimizer.zero_grad()
        weight = prepared.weight(plan.samples)
        loss_config = self.objective.loss_config

        def loss(micro: MicroBatch, logprobs: ResponseLogprobs) -> tuple[torch.Tensor, _Part]:
            samples, index = ((), None) if micro.is_dummy else (micro.samples, micro.positions)
            micro_slice = MicroBatchSlice.of(prepared, weight, samples, index=index)
            micro_slice = micro_slice.to(logprobs.logp.device)
            logp = logprobs.logp[:0] if micro.is_dummy else logprobs.logp
            entropy = None if logprobs.entropy is None else logprobs.entropy[: len(logp)]
            topk_logprobs = None if logprobs.topk_logprobs is None else logprobs.topk_logprobs[: len(logp)]
            columns = TokenColumns(
                micro_slice.advantage, micro_slice.weight, micro_slice.correction, entropy, topk_logprobs
            )
            total, pairs = micro_loss(self.objective, micro_slice.view(logp, self._reduce), columns)
            return total, _Part(pairs, micro.positions, logprobs.logp.detach(), micro.is_dummy)

        mine = plan.micro_batches[self.passes.layout.dp_rank]
        topk_ids = prepared.batch.t(TOP_IDS.name).long() if loss_config.score_centering_top_k else None
        parts = self.passes.train(
            prepared.batch, mine, loss, entropy=loss_config.entropy_coef != 0.0, topk_ids=topk_ids
        )
        metrics = {**self.passes.total([part.pairs for part in parts]), **self.optimizer.step_on(weight)}
        return _Done(plan, metrics, parts)

    @property
    def _reduce(self) -> Reduce | None:
        """Sum over context ranks, with its gradient; None without context parallelism."""
        if self.passes.layout.cp_size == 1:
            return None
        from megatron.core import parallel_state
        from torch.distributed.nn.functional import all_reduce

        group = parallel_state.get_context_parallel_group()
        return lambda x: all_reduce(x, group=group)

    def _collected(self, batch: StepBatch, done: Sequence[_Done]) -> torch.Tensor:
        """[R] log-probs that the training passes computed on their way, each before its optimizer step."""
        parts = [(part.positions, part.logp, part.is_dummy) for one in done for part in one.parts]
        gathered = self.passes.gather(batch.response_tokens, parts)
        assert gathered is not None, "only the last stage collects"
        return gathered

    def _packing(self, batch: StepBatch, plans: Sequence[BatchPlan]) -> dict[str, float]:
        ranks, layout = self.passes.layout.dp_size, self.passes.layout
        micro = sum(plan.micro_batches_per_rank for plan in plans)
        metrics = {
            "train/micro_batches": float(micro),
            "train/global_batch_size": float(self.config.global_batch),
            "train/tokens": float(batch.total_lengths.sum()),
        }
        cap = self.config.train.max_tokens_per_gpu
        if self.config.train.use_dynamic_batch_size and cap:
            metrics["train/packing_efficiency"] = metrics["train/tokens"] / (micro * ranks * cap * layout.cp_size)
        return metrics


@dataclass(frozen=True)
class _Part:
    """What one micro-batch leaves behind."""

    pairs: Mapping[str, Pair]
    positions: torch.Tensor
    logp: torch.Tensor
    is_dummy: bool


@dataclass(frozen=True)
class _Done(OptimizerStep):
    """With its parts, on the last stage."""

    parts: Sequence[_Part]
