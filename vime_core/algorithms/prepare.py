"""The stages that run once a step, on the whole batch, alike on every rank: select, advantages, weights, correction.

Order: penalties go into the rewards; selection, so that a sample that does not count is in no denominator; what is not
there, a sample without a trainable token of its own, loses its reward; advantages over all that have one, because a
sample that is there and not trained on (truncated, say) still had its reward and belongs in its group's baseline;
whitening, the teacher's term, and corrections, which see the final advantages; weights last, one set for each
optimizer step, counted over that step's samples on all ranks. As every rank holds the whole batch, none of this needs
communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from vime_core.algorithms import stages
from vime_core.algorithms.common import group_stats_of, whiten
from vime_core.algorithms.correction import Combined, combine
from vime_core.algorithms.metrics import Pair, finish, token_pair
from vime_core.api import TrainerError
from vime_core.batch import StepTokens, check_aggregation, token_weights

if TYPE_CHECKING:
    from vime_core.algorithms.loss_config import LossConfig
    from vime_core.algorithms.objective import Objective
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
        needs: columns of the batch that the objective reads.
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
    needs: frozenset[str] = frozenset()

    def step_tokens(self, samples: Sequence[int]) -> StepTokens:
        """What is counted for the optimizer step that consists of ``samples`` (all of them, over all ranks:
        :attr:`vime_core.batch.plan.BatchPlan.samples`)."""
        here = torch.zeros_like(self.selected)
        here[torch.as_tensor(samples, dtype=torch.int64)] = True
        batch = self.batch
        columns = (batch.seg(), batch.t("rollout"), batch.t("group"))
        return StepTokens(self.mask, *columns, self.selected & here, self.length)

    def weight(self, samples: Sequence[int]) -> torch.Tensor:
        """[R] float64 token weights of that optimizer step; 0 outside the step and outside the mask."""
        return token_weights(self.aggregation, self.step_tokens(samples))


def prepare_step(objective: Objective, batch: StepBatch) -> Prepared:
    """Run the stages of one rollout step.

    Raises:
        ConfigError: unknown aggregation.
        TrainerError: the batch lacks a column that algorithm or loss config need, or has a number in it that is not
            finite at a trainable token; or algorithm or correction broke their contract (shape, gradient, an advantage
            or weight that is not finite at a trainable token); names who and where.
    """
    algorithm, loss_config = objective.algorithm, objective.loss_config
    name = check_aggregation(objective.aggregation or algorithm.aggregate)
    batch = sampler_as_old(batch) if loss_config.use_rollout_logprobs else batch
    _check_needs(objective, batch)
    batch, metrics = _shape_rewards(batch, loss_config)
    selected = stages.select(objective, batch)
    batch, selected = _without_absent(objective, batch, selected)
    mask = batch.t("mask") & selected[batch.seg()]
    known = {column: batch.t(column) for column in sorted(objective.needs & _ALWAYS_FINITE)}
    _require_finite(batch, mask, known, objective.who)
    with torch.no_grad():
        advantage, returns = _advantages(objective, batch, mask)
        advantage, teacher_metrics = _shape_advantages(batch, advantage, mask, loss_config)
        correction, own_metrics = stages.correction(objective, batch)
        if correction is not None:
            correction = _checked(objective, "correction", correction, batch, mask)
        combined = Combined(None, mask, {})
        if objective.corrections:
            combined = combine(objective.corrections, batch, advantage, mask)
    if correction is None or combined.weight is None:
        correction = combined.weight if correction is None else correction
    else:
        correction = correction * combined.weight
    mask = combined.mask
    counts = batch.trainable_counts(mask)
    metrics |= {**teacher_metrics, **combined.metrics, **_counts(selected, counts), **_advantage_range(advantage, mask)}
    metrics |= _groups(batch) if algorithm.group_based else {}
    metrics |= finish({key: token_pair(x, mask) for key, x in own_metrics.items()})
    return Prepared(
        batch=batch,
        aggregation=name,
        length=objective.fixed_length,
        selected=selected,
        mask=mask,
        counts=counts,
        advantage=advantage,
        correction=correction,
        metrics=metrics,
        returns=returns,
        needs=objective.needs,
    )


# what the batch must have ----------------------------------------------------------------------------------------
#: needs that are not columns of the batch, or that may come with the micro-batch
_ELSEWHERE = frozenset({"old_logp", "entropy"})
#: columns that models compute; a number in them that is not finite is an error, where the sampler's may be missing
_ALWAYS_FINITE = frozenset({"ref_logp", "teacher_logp", "values"})


def _check_needs(objective: Objective, batch: StepBatch) -> None:
    missing = sorted(objective.needs - {"reward", "rollout_logp", *batch.extra} - _ELSEWHERE)
    if objective.recompute_old_logprobs and batch.old_logp is None:
        missing.append("old_logp")
    if missing:
        raise TrainerError(
            f"{objective.who} needs {', '.join(missing)}, and the batch has no such column; "
            "compute it before the step or choose another algorithm"
        )


def _require_finite(batch: StepBatch, mask: torch.Tensor, columns: Mapping[str, torch.Tensor], who: str) -> None:
    """Raises:
    TrainerError: a column [R] is NaN or infinite at a trainable token; counts them and names the first sample.
    """
    for name, x in columns.items():
        bad = mask & ~torch.isfinite(x)
        if bad.any():
            raise TrainerError(
                f"{who} needs {name}, which is not finite at {int(bad.sum())} of {int(mask.sum())} trainable tokens, "
                f"first in {_first_sample(batch, bad)}"
            )


def _first_sample(batch: StepBatch, which: torch.Tensor) -> str:
    """Names the sample of the first token in ``which`` [R]."""
    sample = int(batch.seg()[which][0])
    return f"sample {sample} (group {batch.group[sample]}, rollout {batch.rollout[sample]})"


# rewards and advantages ------------------------------------------------------------------------------------------
def sampler_as_old(batch: StepBatch) -> StepBatch:
    """The batch whose old policy is the sampler.

    Raises:
        TrainerError: the sampler gave no finite log-prob for some trainable token.
    """
    mu = batch.t("rollout_logp")
    _require_finite(batch, batch.t("mask"), {"rollout_logp": mu}, "use_rollout_logprobs")
    return batch.with_old_logp(mu)


def overlong_penalty(lengths: torch.Tensor, longest: int, buffer: int, factor: float = 1.0) -> torch.Tensor:
    """[N] float64 ``factor * min(0, -(length - (longest - buffer)) / buffer)`` (Yu 2025, DAPO, arXiv 2503.14476): 0 up
    to ``longest - buffer`` tokens, ``-factor`` at ``longest`` and beyond. lengths: [N] sampled tokens."""
    return factor * (-(lengths.double() - (longest - buffer)) / buffer).clamp(min=-1.0, max=0.0)


def _shape_rewards(batch: StepBatch, config: LossConfig) -> tuple[StepBatch, dict[str, float]]:
    """(the batch with penalties in its rewards, their mean over scored samples)."""
    if not config.overlong_buffer_len:
        return batch, {}
    bounds = (config.max_response_len, config.overlong_buffer_len, config.overlong_penalty_factor)
    sampled = torch.zeros(len(batch), dtype=torch.int64).index_add_(0, batch.seg(), (batch.t("version") >= 0).long())
    penalty = overlong_penalty(sampled, *bounds)  # observations are not the model's words
    scored = penalty[torch.isfinite(batch.t("reward"))]
    metrics = {"overlong_penalty": float(scored.mean())} if len(scored) else {}
    return replace(batch, reward=batch.reward + penalty.numpy()), metrics


def _without_absent(objective: Objective, batch: StepBatch, selected: torch.Tensor) -> tuple[StepBatch, torch.Tensor]:
    """(the batch in which what is not there has no reward, [N] samples that count)."""
    if "reward" in objective.algorithm.needs:
        selected = selected & torch.isfinite(batch.t("reward"))
        batch = replace(batch, reward=np.where(batch.trainable_counts().numpy() > 0, batch.reward, np.nan))
    if objective.loss_config.mask_truncated_samples:
        selected = selected & ~batch.t("truncated")
    return batch, selected


def _advantages(objective: Objective, batch: StepBatch, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """([R] advantages, [R] a critic's targets or None)."""
    found, returns = stages.advantages(objective, batch)
    advantage = _checked(objective, "advantages", found, batch, mask)
    return advantage, None if returns is None else _checked(objective, "advantages (returns)", returns, batch, mask)


def _shape_advantages(
    batch: StepBatch, advantage: torch.Tensor, mask: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor, dict[str, float]]:
    """Whitened if asked for; then the teacher's term ``- coef * (old_logp - teacher_logp)``, which whitening would
    rescale away.

    Args:
        advantage: [R] float32, 0 outside ``mask`` [R].

    Returns:
        ([R] float32, metric ``opd_reverse_kl``: token mean of ``old_logp - teacher_logp``, wherever there is a
        teacher: an algorithm may read it, too).
    """
    if config.normalize_advantages:
        advantage = whiten(advantage, mask)
    if "teacher_logp" not in batch.extra or batch.old_logp is None:
        return advantage, {}
    gap = torch.zeros_like(advantage)
    gap[mask] = batch.t("old_logp")[mask] - batch.t("teacher_logp")[mask]
    metrics = {"opd_reverse_kl": float(gap[mask].double().mean())} if mask.any() else {}
    return advantage - config.opd_kl_coef * gap, metrics


# the algorithm's contract ----------------------------------------------------------------------------------------
def _checked(objective: Objective, stage: str, x: torch.Tensor, batch: StepBatch, mask: torch.Tensor) -> torch.Tensor:
    """x as float32, without gradient, 0 outside the mask."""
    if x.requires_grad:
        stages.refuse(objective, stage, "must not carry a gradient; detach it")
    bad = mask & ~torch.isfinite(x)
    if bad.any():
        where = f"{int(bad.sum())} trainable tokens, first in {_first_sample(batch, bad)}"
        stages.refuse(objective, stage, f"is not finite at {where}; check rewards and inputs")
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype)).float()


# metrics ---------------------------------------------------------------------------------------------------------
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
