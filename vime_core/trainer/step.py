"""One rollout step of training on this rank: old log-probs if needed, the algorithm's stages, then optimizer steps.

Every rank holds the whole batch and computes the same plan, so the stages that look at the whole step (credit,
weights, corrections) need no communication; micro-batches are this rank's rows of the plan. The loss of a micro-batch
is a plain sum and Megatron adds gradients up, so the result does not depend on how samples were packed or dealt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vime_core.algorithms.loss import micro_loss
from vime_core.algorithms.metrics import Pair, add_pairs, finish, from_vector, to_vector
from vime_core.algorithms.prepare import Prepared, prepare_step, wants_old_logp
from vime_core.algorithms.share import MicroShare
from vime_core.algorithms.terms import Terms
from vime_core.batch.plan import StepPlan, forward_of, plan_steps
from vime_core.trainer.mismatch import mismatch

if TYPE_CHECKING:
    from vime_core.batch.step_batch import StepBatch
    from vime_core.config.sections import Config
    from vime_core.interfaces.algorithm import Algorithm
    from vime_core.trainer.head import ResponseLogprobs
    from vime_core.trainer.optimizer import Optimizer
    from vime_core.trainer.passes import Micro, Passes


@dataclass
class TrainStep:
    """Trains on step batches. ``aggregation`` and ``options`` are the resolved ones of the algorithm."""

    config: Config
    passes: Passes
    optimizer: Optimizer
    algorithm: Algorithm
    options: Mapping[str, Any]
    aggregation: str

    def run(self, batch: StepBatch) -> dict[str, float]:
        """Train on the batch; metrics under their catalogue names (complete on the last pipeline stage)."""
        plans = self._plan(batch)
        clock = time.monotonic()
        old = self._old_logp(batch, plans)
        if old is not None:
            batch = batch.with_old_logp(old)
        log_probs_time = time.monotonic() - clock
        prepared = prepare_step(
            self.algorithm,
            self.options,
            batch,
            self.aggregation,
            fixed_length=self.config.rollout.rollout_max_response_len,
        )
        clock = time.monotonic()
        done = [self._optimizer_step(prepared, plan) for plan in plans]
        train_time = time.monotonic() - clock
        metrics = {f"train/{name}": value for name, value in {**prepared.metrics, **_mean(done)}.items()}
        if self.passes.layout.is_last_stage:
            current = batch.t("old_logp") if old is not None else self._collected(batch, done)
            metrics |= mismatch(batch, current)
        metrics |= self._packing(batch, plans)
        return {**metrics, "perf/log_probs_time": log_probs_time, "perf/actor_train_time": train_time}

    def _plan(self, batch: StepBatch) -> list[StepPlan]:
        train, layout = self.config.train, self.passes.layout
        cap = train.max_tokens_per_gpu if train.use_dynamic_batch_size else None
        return plan_steps(
            batch,
            global_batch_size=self.config.global_batch,
            dp_size=layout.dp_size,
            max_tokens=cap * layout.cp_size if cap else None,
            micro_batch_size=train.micro_batch_size,
            balance="cost" if train.balance_data else "order",
            length_multiple=2 * layout.cp_size if layout.cp_size > 1 else 1,
        )

    def _old_logp(self, batch: StepBatch, plans: Sequence[StepPlan]) -> torch.Tensor | None:
        """[R] log-probs before the first of several optimizer steps, packed as in training, so that the first ratio is
        1 to the bit; None where one step makes the current ones do."""
        if not wants_old_logp(self.algorithm, self.options, len(plans)):
            return None
        mine = forward_of(plans)[self.passes.layout.dp_rank]
        gathered = self.passes.logprobs(batch, mine)
        # Stages before the last never look at log-probs; zeros let them run the same whole-step code.
        return torch.zeros(batch.response_tokens) if gathered is None else gathered

    def _optimizer_step(self, prepared: Prepared, plan: StepPlan) -> _Done:
        for chunk in self.passes.model.chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]  # Megatron's DistributedDataParallel
        self.optimizer.zero_grad()
        weight = prepared.weight(plan.samples)
        terms = Terms.of(self.config)

        def loss(micro: Micro, logprobs: ResponseLogprobs) -> tuple[torch.Tensor, _Part]:
            samples = micro.samples if micro.alive else []
            share = MicroShare.of(
                prepared, weight, samples, needs=self.algorithm.needs, index=micro.places if micro.alive else None
            ).to(logprobs.logp.device)
            logp = logprobs.logp if micro.alive else logprobs.logp[:0]
            entropy = None if logprobs.entropy is None else logprobs.entropy[: len(logp)]
            total, pairs = micro_loss(
                self.algorithm,
                self.options,
                share.view(logp, self._reduce),
                share.advantage,
                share.weight,
                share.correction,
                entropy,
                terms,
            )
            return total, _Part(pairs, micro.places, logprobs.logp.detach(), micro.alive)

        mine = plan.micro_batches[self.passes.layout.dp_rank]
        parts = self.passes.run(prepared.batch, mine, loss, gradient=True, entropy=terms.entropy_coef != 0.0)
        return _Done({**self._reduced(parts), **self.optimizer.step()}, parts)

    @property
    def _reduce(self) -> Any:
        """Sum over context ranks, with its gradient; None without context parallelism."""
        if self.passes.layout.cp_size == 1:
            return None
        from megatron.core import parallel_state
        from torch.distributed.nn.functional import all_reduce

        group = parallel_state.get_context_parallel_group()
        return lambda x: all_reduce(x, group=group)

    def _reduced(self, parts: Sequence[_Part]) -> dict[str, float]:
        """Metrics of an optimizer step over all data and context ranks: added up, divided once."""
        if not self.passes.layout.is_last_stage:
            return {}
        from megatron.core import parallel_state

        pairs: dict[str, Pair] = add_pairs(part.pairs for part in parts)
        vector = to_vector(pairs).to(self.passes.device)
        torch.distributed.all_reduce(vector, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return finish(from_vector(vector.cpu(), pairs))

    def _collected(self, batch: StepBatch, done: Sequence[_Done]) -> torch.Tensor:
        """[R] log-probs that the training passes computed on their way (one optimizer step: they are the old ones)."""
        parts = [(part.places, part.logp, part.alive) for one in done for part in one.parts]
        gathered = self.passes.gather(batch.response_tokens, parts)
        assert gathered is not None, "only the last stage collects"
        return gathered

    def _packing(self, batch: StepBatch, plans: Sequence[StepPlan]) -> dict[str, float]:
        ranks, layout = self.passes.layout.dp_size, self.passes.layout
        micro = sum(plan.micro_batches_per_rank for plan in plans)
        metrics = {
            "train/micro_batches": float(micro),
            "train/global_batch_size": float(self.config.global_batch),
            "train/tokens": float(batch.total_lengths.sum()),
        }
        cap = self.config.train.max_tokens_per_gpu
        if self.config.train.use_dynamic_batch_size and cap:
            metrics["train/fill"] = metrics["train/tokens"] / (micro * ranks * cap * layout.cp_size)
        return metrics


@dataclass(frozen=True)
class _Part:
    """What one micro-batch leaves behind."""

    pairs: Mapping[str, Pair]
    places: torch.Tensor
    logp: torch.Tensor
    alive: bool


@dataclass(frozen=True)
class _Done:
    """One optimizer step: its metrics, and its parts on the last stage."""

    metrics: dict[str, float]
    parts: Sequence[_Part]


def _mean(done: Sequence[_Done]) -> dict[str, float]:
    """Metrics averaged over the optimizer steps of one rollout step; skipped ones are counted, not averaged."""
    names = {name for one in done for name in one.metrics}
    values = {name: [one.metrics[name] for one in done if name in one.metrics] for name in names}
    means = {name: sum(x) / len(x) for name, x in values.items()}
    means["skipped_steps"] = sum(one.metrics["skipped"] for one in done)
    means.pop("skipped")
    return means
