"""The stages that run once a step, on the whole batch, alike on every rank: select, advantages, weights, correction.

Order: penalties go into the rewards; selection, so that a sample that does not count is in no denominator; advantages
over *all* samples, because a sample that is not trained on (truncated, say) still had its reward and belongs in its
group's baseline; whitening, the teacher's term, and corrections, which see the final advantages; weights last, one set
for each optimizer step, counted over that step's samples on all ranks. As every rank holds the whole batch, none of
this needs communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vime_core.algorithms.common import group_stats_of
from vime_core.algorithms.correction import Correction, combine
from vime_core.algorithms.loss_config import NO_LOSS_CONFIG, LossConfig, needed_columns
from vime_core.algorithms.metrics import Pair, finish, token_pair
from vime_core.algorithms.shaping import require_finite, sampler_as_old, shape_advantages, shape_rewards
from vime_core.api import Advantages, Algorithm, TrainerError
from vime_core.batch import check_aggregation, token_weights

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


@dataclass(frozen=True)
class Prepared:
    """One rollout step, ready for its optimizer steps. N samples, R response tokens; all on the CPU.

    Attributes:
        batch: the whole batch, rewards shaped.
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
        :attr:`vime_core.batch.plan.BatchPlan.samples`); 0 outside the step and outside the mask."""
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
    loss_config: LossConfig = NO_LOSS_CONFIG,
    corrections: Sequence[Correction] = (),
    fixed_length: int | None = None,
) -> Prepared:
    """Run the stages of one rollout step.

    Args:
        loss_config: what the framework adds around the algorithm. corrections: its corrections, resolved.
        fixed_length: tokens that aggregation ``fixed_length`` divides by: the longest possible response.

    Raises:
        ConfigError: unknown aggregation.
        TrainerError: the batch lacks a column that algorithm or loss config need, or has a number in it that is not
            finite at a trainable token; or algorithm or correction broke their contract (shape, gradient, an advantage
            or weight that is not finite at a trainable token); names who and where.
    """
    name = check_aggregation(aggregation)
    needs = needed_columns(algorithm, options, loss_config)
    batch = sampler_as_old(batch) if loss_config.use_rollout_logprobs else batch
    check_needs(algorithm, options, batch, loss_config)
    batch, metrics = shape_rewards(batch, loss_config)
    selected = _selected(algorithm, options, batch, loss_config)
    mask = batch.t("mask") & selected[batch.seg()]
    known = {column: batch.t(column) for column in sorted(needs & _ALWAYS_FINITE)}
    require_finite(batch, mask, known, f"algorithm {algorithm.name!r}")
    with torch.no_grad():
        advantage, returns = _advantages(algorithm, options, batch, mask)
        advantage, term_metrics = shape_advantages(batch, advantage, mask, loss_config)
        correction, own_metrics = algorithm.correction(batch, options)
        if correction is not None:
            correction = _checked(algorithm, "correction", correction, batch, mask)
        combined = combine(corrections, batch, advantage, mask)
    correction, mask = _product(correction, combined.weight), combined.mask
    counts = batch.trainable_counts(mask)
    metrics = {
        **metrics,
        **term_metrics,
        **combined.metrics,
        **_counts(selected, counts),
        **_advantage_range(advantage, mask),
    }
    if algorithm.group_based:
        metrics |= _groups(batch)
    metrics |= finish({name: token_pair(x, mask) for name, x in own_metrics.items()})
    return Prepared(batch, name, fixed_length, selected, mask, counts, advantage, correction, metrics, returns)


def _selected(
    algorithm: Algorithm, options: Mapping[str, Any], batch: StepBatch, loss_config: LossConfig
) -> torch.Tensor:
    """[N] bool."""
    selected = algorithm.select(batch, options)
    _check(algorithm, "select", selected, len(batch))
    if "reward" in algorithm.needs:
        selected = selected & torch.isfinite(batch.t("reward"))
    return selected & ~batch.t("truncated") if loss_config.mask_truncated_samples else selected


#: needs that are not columns of the batch, or that may come with the micro-batch
_ELSEWHERE = frozenset({"old_logp", "entropy"})
#: columns that models compute; a number in them that is not finite is a fault, where the sampler's may be missing
_ALWAYS_FINITE = frozenset({"ref_logp", "teacher_logp", "values"})


def check_needs(
    algorithm: Algorithm, options: Mapping[str, Any], batch: StepBatch, loss_config: LossConfig = NO_LOSS_CONFIG
) -> None:
    """Raises:
    TrainerError: the batch lacks a column that the algorithm or the loss config around it need.
    """
    columns = {"reward", "rollout_logp", *batch.extra}
    missing = sorted(needed_columns(algorithm, options, loss_config) - columns - _ELSEWHERE)
    if (algorithm.recompute_old_logprobs or loss_config.recompute_old_logprobs) and batch.old_logp is None:
        missing.append("old_logp")
    if missing:
        raise TrainerError(
            f"algorithm {algorithm.name!r} needs {', '.join(missing)}, and the batch has no such column; compute it "
            "before the step or choose another algorithm"
        )


def wants_old_logp(
    algorithm: Algorithm, options: Mapping[str, Any], optimizer_steps: int, loss_config: LossConfig = NO_LOSS_CONFIG
) -> bool:
    """Whether the trainer must compute log-probs before the stages. With a single optimizer step they are the current
    ones, detached, and the second forward pass is saved, unless something reads them before; and the sampler's may
    stand for them."""
    if loss_config.use_rollout_logprobs or "old_logp" not in needed_columns(algorithm, options, loss_config):
        return False
    return optimizer_steps > 1 or algorithm.recompute_old_logprobs or loss_config.recompute_old_logprobs


def _product(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first * second


def _advantages(
    algorithm: Algorithm, options: Mapping[str, Any], batch: StepBatch, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """([R] advantages, [R] a critic's targets or None)."""
    found = algorithm.advantages(batch, options)
    if not isinstance(found, Advantages):
        return _checked(algorithm, "advantages", found, batch, mask), None
    advantage = _checked(algorithm, "advantages", found.advantage, batch, mask)
    return advantage, _checked(algorithm, "advantages (returns)", found.returns, batch, mask)


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


def _advantage_range(advantage: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
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
    """Ratio of groups that can teach nothing: all rewards equal, or one rollout only."""
    stats = group_stats_of(batch)
    kinds = {"zero_std_groups": (stats.rollouts > 1) & (stats.std == 0), "groups_of_one": stats.rollouts < 2}
    ratios = {name: stats.count_groups(which) for name, which in kinds.items()}
    return finish({name: Pair(torch.tensor(k), torch.tensor(n)) for name, (k, n) in ratios.items()})
