"""From rewards and log-probs to one sample's share of the loss, computed again from what a run kept of a step.

The arithmetic is done here from the columns of :mod:`vime_core.observe.loss_inputs` and the algorithm's own surrogate,
not by the trainer's loss function. Its sum over the whole optimizer step stands beside what the trainer logged.
The entropy bonus is not part of it: entropies are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from vime_core.algorithms import (
    GroupStats,
    LossConfig,
    MicroBatchSlice,
    Objective,
    Prepared,
    group_stats_of,
    kl_loss,
    policy_loss,
    sampler_as_old,
    trainable,
)
from vime_core.api import Algorithm, DataError, TokenView
from vime_core.batch import SCHEMA, StepBatch, StepTokens
from vime_core.observe import LossInputs


@dataclass(frozen=True)
class Explanation:
    """One sample of one rollout step; r is its number of response tokens.

    Attributes:
        facts: of the step, as the file has them. given: [N] rewards before shaping. batch: the whole step, shaped.
        sample: its place in the step. optimizer_step: the one that trained it, -1 for none.
        groups: statistics of rewards by group.
        counted: samples and tokens of that optimizer step, from which weights have their denominators.
        columns: name -> [r] numbers, in the order in which they are printed.
        pg_loss, kl_loss: this sample's sums. total, logged: of the whole optimizer step, as computed here and as the
            trainer logged it. mass: the sum of its shares' sizes, beside which a total may be next to nothing.
    """

    facts: Mapping[str, Any]
    given: torch.Tensor
    batch: StepBatch
    sample: int
    optimizer_step: int
    groups: GroupStats
    counted: StepTokens
    columns: Mapping[str, torch.Tensor]
    pg_loss: float
    kl_loss: float
    total: float
    mass: float
    logged: float | None


def explain_sample(inputs: LossInputs, algorithm: Algorithm, sample: int) -> Explanation:
    """Args:
        algorithm: the one that the run used (``inputs.facts["algorithm"]``).
        sample: 0 .. N-1.

    Raises:
        DataError: there is no such sample, or the loss read what is not kept.
    """
    if terms_of(inputs).score_centering_top_k:
        raise DataError("score centering reads log-probs of many tokens at each place, and a run does not keep those")
    prepared, step_of = prepared_of(inputs), inputs.columns["optimizer_step"]
    if not 0 <= sample < len(step_of):
        raise DataError(f"step {inputs.facts['step']} has samples 0 .. {len(step_of) - 1}, not {sample}")
    step = int(step_of[sample])
    together = [i for i, k in enumerate(step_of) if k == step and step >= 0]
    mine = _arithmetic(inputs, prepared, algorithm, [sample])
    every = _arithmetic(inputs, prepared, algorithm, together)
    logged = inputs.facts["optimizer_steps"][step].get("pg_loss") if step >= 0 else None
    batch = prepared.batch
    return Explanation(
        facts=inputs.facts,
        given=torch.from_numpy(inputs.columns["reward"]),
        batch=batch,
        sample=sample,
        optimizer_step=step,
        groups=group_stats_of(batch),
        counted=prepared.step_tokens(together),
        columns=mine,
        pg_loss=float(mine["share"].sum()),
        kl_loss=float(mine["KL share"].sum()) if "KL share" in mine else 0.0,
        total=float(every["share"].sum()),
        mass=float(every["share"].abs().sum()),
        logged=None if logged is None else float(logged),
    )


def terms_of(inputs: LossInputs) -> LossConfig:
    """What the run's framework added around its algorithm."""
    return LossConfig(**inputs.facts["terms"])


def prepared_of(inputs: LossInputs) -> Prepared:
    """The stages' results as they were before the loss."""
    c, facts = inputs.columns, inputs.facts
    extra: Any = {name: (axis, c[name]) for name, axis in facts["axes"].items()}
    batch = StepBatch.of(extra=extra, **{name: c[name] for name in SCHEMA})
    if "old_logp" in c:
        batch = batch.with_old_logp(torch.from_numpy(c["old_logp"]))
    batch = replace(batch, reward=c["shaped_reward"])
    batch = sampler_as_old(batch) if terms_of(inputs).use_rollout_logprobs else batch
    mask = torch.from_numpy(c["trained"])
    correction, returns = (torch.from_numpy(c[name]) if name in c else None for name in ("correction", "returns"))
    return Prepared(
        batch=batch,
        aggregation=facts["aggregation"],
        length=facts["fixed_length"],
        selected=torch.from_numpy(c["selected"]),
        mask=mask,
        counts=batch.trainable_counts(mask),
        advantage=torch.from_numpy(c["advantage"]),
        correction=correction,
        returns=returns,
        metrics={},
    )


def _ratio(objective: Objective, view: TokenView, advantage: torch.Tensor) -> torch.Tensor:
    """[r] the one that the algorithm used; of an algorithm that does not say, each token's own."""
    used = getattr(objective.algorithm, "used_ratio", None)
    own = (view.logp - view.old_logp).exp()
    return own if used is None else used(view, advantage, objective.options).double()


def _arithmetic(
    inputs: LossInputs, prepared: Prepared, algorithm: Algorithm, samples: Sequence[int]
) -> dict[str, torch.Tensor]:
    """[r] columns of the samples' tokens, float64."""
    terms = terms_of(inputs)
    objective = Objective(algorithm, inputs.facts["options"], loss_config=terms)
    weight = torch.from_numpy(inputs.columns["weight"])
    share = MicroBatchSlice.of(replace(prepared, needs=objective.needs), weight, samples, dtype=torch.float64)
    view = share.view(torch.from_numpy(inputs.columns["logp"]).double()[share.index])
    advantage = trainable(share.mask, share.advantage)
    surrogate, _ = policy_loss(objective, view, advantage)
    correction = torch.ones_like(advantage) if share.correction is None else share.correction
    columns = {
        "trained": share.mask,
        "logp": view.logp,
        "old": view.old_logp,
        "sampler": prepared.batch.t("rollout_logp")[share.index].double(),
        "ratio": _ratio(objective, view, advantage),
        "advantage": advantage,
        "loss": trainable(share.mask, surrogate.double()),
        "correction": correction,
        "weight": share.weight,
    }
    columns["share"] = trainable(share.mask, columns["weight"] * correction * columns["loss"])
    if terms.kl_loss_coef:
        reference, kind = view.extra["ref_logp"].double(), terms.kl_loss_type
        kl = kl_loss(view.logp, reference, view.old_logp, kind, unbiased=terms.use_unbiased_kl)
        columns["KL"] = trainable(share.mask, kl)
        columns["KL share"] = terms.kl_loss_coef * columns["weight"] * columns["KL"]
    return columns
