"""A whole optimizer step on a toy policy: one table of logits, any packing, any number of virtual ranks.

The toy does what the trainer does, with the trainer's own functions (plan, prepare, share, loss), on float64 CPU
tensors in one process. So properties can be compared down to rounding, and gradients come out per token.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from vime_core.algorithms import (
    CORRECTIONS,
    LossConfig,
    MicroBatchSlice,
    Objective,
    Pair,
    Prepared,
    Reduce,
    TokenColumns,
    add_pairs,
    corrections_of,
    finish,
    merge_options,
    micro_loss,
    prepare_step,
    response_index,
)
from vime_core.api import Algorithm
from vime_core.batch import StepBatch
from vime_testing.samples import small_batch as small_batch

VOCABULARY = 5
EXCHANGE_SECONDS = 60.0
ENTROPY = LossConfig(entropy_coef=0.03)

Micro = Callable[..., tuple[torch.Tensor, dict[str, Pair]]]
Partition = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Case:
    """A batch and the policy's table.

    Attributes:
        logits: [R, V] float64, one row a response token.
        under: what the policy's log-probs and entropy are where the mask is 0; a model may give anything there.
    """

    batch: StepBatch
    logits: torch.Tensor
    under: float = math.nan

    @property
    def targets(self) -> torch.Tensor:
        """[R] sampled tokens."""
        rows, _ = response_index(self.batch, range(len(self.batch)))
        starts = self.batch.t("total_lengths") - self.batch.t("response_lengths")
        offset = torch.from_numpy(self.batch.token_starts[:-1] - self.batch.response_starts[:-1]) + starts
        return self.batch.t("tokens")[rows + offset[self.batch.seg()]] % VOCABULARY

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """[R] of the sampled tokens."""
        return self._visible(torch.log_softmax(logits, -1).gather(1, self.targets[:, None])[:, 0])

    def entropy(self, logits: torch.Tensor) -> torch.Tensor:
        """[R] of the distributions."""
        logp = torch.log_softmax(logits, -1)
        return self._visible(-(logp.exp() * logp).sum(-1))

    def _visible(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(self.batch.t("mask"), x, torch.full((), self.under, dtype=x.dtype))

    def replace(self, **columns: Any) -> Case:
        """The case with columns of its batch changed."""
        return replace(self, batch=replace(self.batch, **columns))


def random_case(seed: int, needs: frozenset[str] = frozenset(), *, old_noise: float = 0.4) -> Case:
    """Groups of 1 to 4 rollouts of 1 to 3 samples; among them an empty response, a fully masked one, a masked tail, a
    single token, a group of one, a group of equal rewards. Token columns are NaN under the mask.

    Args:
        needs: columns to invent beyond the standard ones (``ref_logp`` and the like, [R]).
        old_noise: distance of the old policy from the current one, in logits.
    """
    rng = np.random.default_rng(seed)
    group, rollout, reward = _families(rng)
    n = len(group)
    lengths = rng.integers(1, 9, n)
    lengths[rng.permutation(n)[:2]] = (0, 1)
    masks = [rng.random(k) < 0.75 for k in lengths]
    masked, tail = (int(i) for i in rng.permutation(np.flatnonzero(lengths > 1))[:2])
    masks[masked][:] = False
    masks[tail][-1], masks[tail][0] = False, True
    mask = np.concatenate(masks)
    prompts = rng.integers(1, 6, n)
    tokens = rng.integers(0, 50, int((prompts + lengths).sum()))
    noisy = {"rollout_logp", *needs} - {"old_logp", "reward", "entropy"}
    columns = {name: np.where(mask, -rng.exponential(1.0, len(mask)), np.nan).astype("f4") for name in noisy}
    batch = StepBatch.of(
        tokens=tokens,
        total_lengths=prompts + lengths,
        response_lengths=lengths,
        mask=mask,
        rollout_logp=columns.pop("rollout_logp"),
        version=np.where(mask, 0, -1),
        reward=reward,
        group=group,
        rollout=rollout,
        truncated=rng.random(n) < 0.15,
        extra={name: ("response", x) for name, x in columns.items()},
    )
    logits = torch.from_numpy(rng.normal(size=(len(mask), VOCABULARY)))
    case = Case(batch, logits)
    old = case.log_probs(logits + old_noise * torch.from_numpy(rng.normal(size=logits.shape)))
    return replace(case, batch=batch.with_old_logp(old))


def _families(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([N] group, [N] rollout, [N] reward); ids are neither dense nor sorted."""
    sizes = [1, 3, *rng.integers(2, 5, 3)]
    rows: list[tuple[int, int, float]] = []
    for at, size in enumerate(sizes):
        for k in range(size):
            reward = 0.1 if at == 1 else float(np.round(rng.normal(), 3))
            rows += [(90 - 7 * at, 1000 - 10 * at - k, reward)] * int(rng.integers(1, 4))
    columns = [np.array(column) for column in zip(*rows)]
    return columns[0], columns[1], columns[2]


@dataclass(frozen=True)
class ToyStepResult:
    """Loss, gradient [R, V] in the logits, metrics divided once."""

    loss: float
    grad: torch.Tensor
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class PreparedToyStep:
    """Stages that ran once, and the policy's forward pass. weight, logp, entropy: [R]."""

    prepared: Prepared
    weight: torch.Tensor
    logp: torch.Tensor
    entropy: torch.Tensor


@dataclass(frozen=True)
class Subject:
    """What is put to the test: an algorithm with options under an aggregation, and terms around it.

    Attributes:
        terms: by default an entropy bonus. Corrections are those of vime.
        loss: the function of one micro-batch; a test hands in a wrong one to see that the property fails.
    """

    algorithm: Algorithm
    aggregation: str
    options: Mapping[str, Any] = field(default_factory=dict)
    loss_config: LossConfig = ENTROPY
    length: int = 8
    loss: Micro = micro_loss

    def prepare(self, batch: StepBatch) -> Prepared:
        return prepare_step(self.objective, batch)

    @property
    def objective(self) -> Objective:
        corrections = corrections_of(self.loss_config, CORRECTIONS.__getitem__)
        return Objective(self.algorithm, self.merged, self.aggregation, self.loss_config, corrections, self.length)

    @property
    def merged(self) -> Mapping[str, Any]:
        return merge_options(self.algorithm, self.options)

    @property
    def required(self) -> frozenset[str]:
        """What the batch must have under these options."""
        return self.objective.needs

    def loss_of(
        self, case: Case, logits: torch.Tensor, partition: Partition | None = None, context: int = 1
    ) -> tuple[torch.Tensor, dict[str, Pair]]:
        """One optimizer step over the whole case.

        Args:
            partition: ``[rank][k]`` samples, as a plan gives them; default: one micro-batch.
            context: virtual context-parallel ranks.
        """
        begun, parts = self.begin(case, logits), []
        for samples in [b for rank in partition or [[range(len(case.batch))]] for b in rank]:
            held, exchange = zigzag(case.batch, samples, context), Exchange(context)
            reducers = [exchange.reducer(k) if context > 1 else None for k in range(context)]
            calls = [partial(self.loss_of_rank, begun, samples, held[k], reducers[k]) for k in range(context)]
            parts += exchange.run(calls)
        return torch.stack([loss for loss, _ in parts]).sum(), add_pairs(pairs for _, pairs in parts)

    def begin(self, case: Case, logits: torch.Tensor) -> PreparedToyStep:
        """What the micro-batches of a step share."""
        prepared = self.prepare(case.batch)
        weight = prepared.weight(range(len(case.batch)))
        return PreparedToyStep(prepared, weight, case.log_probs(logits), case.entropy(logits))

    def loss_of_rank(
        self, begun: PreparedToyStep, samples: Sequence[int], index: torch.Tensor, reduce: Reduce | None
    ) -> tuple[torch.Tensor, dict[str, Pair]]:
        """One micro-batch on one context-parallel rank, which holds the response positions ``index``."""
        share = MicroBatchSlice.of(begun.prepared, begun.weight, samples, index=index, dtype=torch.float64)
        view, entropy = share.view(begun.logp[index], reduce), begun.entropy[index]
        columns = TokenColumns(share.advantage, share.weight, share.correction, entropy)
        return self.loss(self.objective, view, columns)

    def run(self, case: Case, partition: Partition | None = None, context: int = 1) -> ToyStepResult:
        """The same with backward."""
        leaf = case.logits.clone().requires_grad_()
        loss, pairs = self.loss_of(case, leaf, partition, context)
        loss.backward()
        assert leaf.grad is not None, "the loss is not connected to the graph"
        return ToyStepResult(float(loss.detach()), leaf.grad, finish(pairs))


# virtual context-parallel ranks ----------------------------------------------------------------------------------
def zigzag(batch: StepBatch, samples: Sequence[int], ranks: int) -> list[torch.Tensor]:
    """[ranks] response positions of each rank: of 2C chunks of a sample, rank k holds the k-th and the k-th last."""
    index, owner = response_index(batch, samples)
    lengths = batch.t("total_lengths")[torch.as_tensor(samples, dtype=torch.int64)]
    starts = torch.from_numpy(batch.response_starts)[torch.as_tensor(samples, dtype=torch.int64)]
    prompts = lengths - batch.t("response_lengths")[torch.as_tensor(samples, dtype=torch.int64)]
    chunk = (prompts[owner] + index - starts[owner]) // ((lengths + 2 * ranks - 1) // (2 * ranks))[owner]
    holder = torch.minimum(chunk, 2 * ranks - 1 - chunk)
    return [index[holder == rank] for rank in range(ranks)]


class Exchange:
    """An all-reduce between threads of one process. The sum stays in one graph, so its gradient is the true one."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks, timeout=EXCHANGE_SECONDS)
        self._slots: dict[int, torch.Tensor] = {}

    def reducer(self, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def reduce(x: torch.Tensor) -> torch.Tensor:
            self._slots[rank] = x
            self._barrier.wait()
            total = torch.stack([self._slots[r] for r in range(self.ranks)]).sum(0)
            self._barrier.wait()
            return total

        return reduce

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Every rank's call, each in a thread of its own; the first error of a rank ends all."""
        if self.ranks == 1:
            return [calls[0]()]
        with ThreadPoolExecutor(self.ranks) as pool:
            futures = [pool.submit(self._guarded, call) for call in calls]
            errors = [e for f in futures if (e := f.exception()) is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        return [f.result() for f in futures]

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException:
            self._barrier.abort()
            raise
