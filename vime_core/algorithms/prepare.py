"""The stages that run once a step, on the whole batch, alike on every rank: select, credit, weights, correction.

Order: selection first, so that a sample that does not count is in no denominator; credit over *all* samples, because a
sample that is not trained on (truncated, say) still had its reward and belongs in its group's baseline; weights last,
one set for each optimizer step, counted over that step's samples on all ranks. As every rank holds the whole batch,
none of this needs communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vime_core.algorithms.common import group_stats_of
from vime_core.algorithms.metrics import Pair, finish, token_pair
from vime_core.batch.aggregate import check_aggregation, token_weights
from vime_core.errors import TrainerError
from vime_core.interfaces.algorithm import Algorithm, Credit

if TYPE_CHECKING:
    from vime_core.batch.step_batch import StepBatch


@dataclass(frozen=True)
class Prepared:
    """One rollout step, ready for its optimizer steps. N samples, R response tokens; all on the CPU.

    Attributes:
        batch: the whole batch.
        aggregation, length: what token weights follow.
        selected: [N] bool samples that count.
        mask: [R] bool trainable tokens of selected samples. counts: [N] their number in each sample.
        advantage: [R] float32, 0 outside the mask.
        correction: [R] float32 or None for all ones.
        returns: [R] float32 targets of a critic, 0 outside the mask, or None.
        metrics: values over the whole step; the same on every rank, so log them once and reduce them nowhere.
    """

    batch: StepBatch
    aggregation: str
    length: int | None
    selected: torch.Tensor
    mask: torch.Tensor
    counts: torch.Tensor
    advantage: torch.Tensor
    correction: torch.Tensor | None
    metrics: Mapping[str, float]
    returns: torch.Tensor | None = None

    def weight(self, samples: Sequence[int]) -> torch.Tensor:
        """[R] float64 token weights of the optimizer step that consists of ``samples`` (all of them, over all ranks:
        :attr:`vime_core.batch.plan.StepPlan.samples`); 0 outside the step and outside the mask."""
        here = torch.zeros_like(self.selected)
        here[torch.as_tensor(samples, dtype=torch.int64)] = True
        return token_weights(
            self.aggregation,
            mask=self.mask,
            seg=self.batch.seg(),
            rollout=self.batch.t("rollout"),
            group=self.batch.t("group"),
            selected=self.selected & here,
            length=self.length,
        )


def prepare_step(
    algorithm: Algorithm,
    options: Mapping[str, Any],
    batch: StepBatch,
    aggregation: str,
    *,
    fixed_length: int | None = None,
) -> Prepared:
    """Run the stages of one rollout step.

    Args:
        fixed_length: tokens that aggregation ``fixed_length`` divides by: the longest possible response.

    Raises:
        ConfigError: unknown aggregation.
        TrainerError: the batch lacks a field that the algorithm needs, or the algorithm broke its contract (shape,
            gradient, an advantage or correction that is not finite at a trainable token); names algorithm and stage.
    """
    check_needs(algorithm, batch)
    selected = algorithm.select(batch, options)
    _check(algorithm, "select", selected, len(batch))
    if "reward" in algorithm.needs:
        selected = selected & torch.isfinite(batch.t("reward"))
    mask = batch.t("mask") & selected[batch.seg()]
    with torch.no_grad():
        advantage, returns = _credit(algorithm, options, batch, mask)
        correction, correction_metrics = algorithm.correction(batch, options)
        if correction is not None:
            correction = _checked(algorithm, "correction", correction, batch, mask)
    counts = batch.trainable_counts(mask)
    metrics = _counts(selected, counts) | _advantages(advantage, mask)
    if algorithm.group_based:
        metrics |= _groups(batch)
    metrics |= finish({name: token_pair(x, mask) for name, x in correction_metrics.items()})
    name = check_aggregation(aggregation)
    return Prepared(batch, name, fixed_length, selected, mask, counts, advantage, correction, metrics, returns)


#: needs that are not columns of the batch, or that may come with the micro-batch
_ELSEWHERE = frozenset({"old_logp", "entropy"})


def check_needs(algorithm: Algorithm, batch: StepBatch) -> None:
    """Raises:
    TrainerError: the batch lacks a column that the algorithm declared in ``needs``.
    """
    columns = {"reward", "rollout_logp", *batch.extra}
    missing = sorted(algorithm.needs - columns - _ELSEWHERE)
    if algorithm.early_old_logp and batch.old_logp is None:
        missing.append("old_logp")
    if missing:
        raise TrainerError(
            f"algorithm {algorithm.name!r} needs {', '.join(missing)}, and the batch has no such column; compute it "
            "before the step or choose another algorithm"
        )


def wants_old_logp(algorithm: Algorithm, optimizer_steps: int) -> bool:
    """Whether the trainer must compute log-probs before the stages. With a single optimizer step they are the current
    ones, detached, and the second forward pass is saved, unless credit or correction read them."""
    return "old_logp" in algorithm.needs and (optimizer_steps > 1 or algorithm.early_old_logp)


def _credit(
    algorithm: Algorithm, options: Mapping[str, Any], batch: StepBatch, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """([R] advantages, [R] a critic's targets or None)."""
    credit = algorithm.credit(batch, options)
    if not isinstance(credit, Credit):
        return _checked(algorithm, "credit", credit, batch, mask), None
    advantage = _checked(algorithm, "credit", credit.advantage, batch, mask)
    return advantage, _checked(algorithm, "credit (returns)", credit.returns, batch, mask)


def _check(algorithm: Algorithm, stage: str, x: torch.Tensor, size: int) -> None:
    if tuple(x.shape) != (size,):
        raise TrainerError(f"algorithm {algorithm.name!r}: {stage} gave shape {tuple(x.shape)}, expected ({size},)")


def _checked(algorithm: Algorithm, stage: str, x: torch.Tensor, batch: StepBatch, mask: torch.Tensor) -> torch.Tensor:
    """x as float32, without gradient, 0 outside the mask."""
    _check(algorithm, stage, x, batch.response_tokens)
    if x.requires_grad:
        raise TrainerError(f"algorithm {algorithm.name!r}: {stage} must not carry a gradient; detach it")
    bad = mask & ~torch.isfinite(x)
    if bad.any():
        sample = int(batch.seg()[bad][0])
        raise TrainerError(
            f"algorithm {algorithm.name!r}: {stage} is not finite at {int(bad.sum())} trainable tokens, first in "
            f"sample {sample} (group {batch.group[sample]}, rollout {batch.rollout[sample]}); check rewards and inputs"
        )
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype)).float()


def _counts(selected: torch.Tensor, counts: torch.Tensor) -> dict[str, float]:
    return {
        "trainable_tokens": float(counts.sum()),
        "samples": float(len(counts)),
        "unselected_samples": float((~selected).sum()),
        "empty_samples": float((selected & (counts == 0)).sum()),
    }


def _advantages(advantage: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Mean, largest and smallest over trainable tokens."""
    chosen = advantage[mask]
    if not len(chosen):
        return {}
    return {
        "advantages/mean": float(chosen.double().mean()),
        "advantages/max": float(chosen.max()),
        "advantages/min": float(chosen.min()),
    }


def _groups(batch: StepBatch) -> dict[str, float]:
    """Shares of groups that can teach nothing: all rewards equal, or one rollout only."""
    stats = group_stats_of(batch)
    kinds = {"zero_std_groups": (stats.votes > 1) & (stats.std == 0), "groups_of_one": stats.votes < 2}
    shares = {name: stats.share_of_groups(which) for name, which in kinds.items()}
    return finish({name: Pair(torch.tensor(k), torch.tensor(n)) for name, (k, n) in shares.items()})
