"""Off-policy corrections: how much a token counts whose sampler was not quite the policy being trained.

A correction is a pure function ``(batch, advantage, **options) -> CorrectionResult`` that runs once a step on the whole
batch. ``batch`` has ``old_logp`` and ``rollout_logp``, and its mask holds the trainable tokens that count;
``advantage`` [R] is final. Options are keyword-only arguments with defaults: one that does not exist is an error. Where
they are many, a class takes them and its objects are called with ``(batch, advantage)``.

With rho = exp(old_logp - rollout_logp), the log ratio clamped to +-20, PPO's own ratio (current against old) is another
one; their product is the current policy against the sampler. A token whose sampler log-prob is missing (NaN) has weight
1 and is counted. A rejected token trains nothing and keeps its place in every denominator, unless a correction says
``leaves_denominator``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vime_core.api import ConfigError, Options, TrainerError
from vime_core.batch import SCHEMA, StageBatch, StepBatch
from vime_core.plugin import BLAMABLE, raised

if TYPE_CHECKING:
    from vime_core.algorithms.loss_config import LossConfig


@dataclass(frozen=True)
class CorrectionResult:
    """What a correction found. Only values at trainable tokens matter.

    Attributes:
        weight: [R] factors of the surrogate, or None for all ones; no gradient.
        keep: [R] bool, False where a token is rejected; or None for all.
        metrics: name -> value over the whole step.
        leaves_denominator: rejected tokens are not counted, as if their mask were 0.
    """

    weight: torch.Tensor | None = None
    keep: torch.Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    leaves_denominator: bool = False


#: the function, or the class whose objects are it
CorrectionFunction = Callable[..., CorrectionResult] | type[Callable[..., CorrectionResult]]


@dataclass(frozen=True)
class Correction:
    """A function and the options that it is called with. ``name`` and ``source``, its plugin, are for messages."""

    name: str
    function: CorrectionFunction
    options: Options = field(default_factory=dict)
    source: str = ""

    @property
    def who(self) -> str:
        """As messages name it."""
        return f"correction {self.name!r}{self.source}"

    def run(self, batch: StepBatch, advantage: torch.Tensor) -> CorrectionResult:
        """On copies of both, so that it cannot change what others read.

        Raises:
            TrainerError: it raised, wrote into its arguments, or broke its contract.
        """
        seen, mine = StageBatch.copy_of(batch), advantage.clone()
        before = mine._version
        try:
            result = self(seen, mine)
        except TrainerError:
            raise
        except BLAMABLE as error:
            raise TrainerError(f"{self.who}: {raised(self.who, error)}") from error
        written = seen.written() + ["advantage"] * (mine._version != before)
        if written:
            raise TrainerError(f"{self.who} changed {', '.join(written)} in place; clone it first")
        return result

    def __call__(self, batch: StepBatch, advantage: torch.Tensor) -> CorrectionResult:
        """Raises:
        TrainerError: the function broke its contract (type, shape, gradient, a weight that is not finite).
        """
        if isinstance(self.function, type):
            result = self.function(**self.options)(batch, advantage)
        else:
            result = self.function(batch, advantage, **self.options)
        if not isinstance(result, CorrectionResult):
            raise TrainerError(f"{self.who} gave {type(result).__name__}, expected CorrectionResult")
        for part, x in (("weight", result.weight), ("keep", result.keep)):
            if x is not None and tuple(x.shape) != (batch.response_tokens,):
                raise TrainerError(
                    f"{self.who}: {part} has shape {tuple(x.shape)}, expected ({batch.response_tokens},)"
                )
        self._check_weight(batch, result.weight)
        return result

    def _check_weight(self, batch: StepBatch, weight: torch.Tensor | None) -> None:
        if weight is None:
            return
        if weight.requires_grad:
            raise TrainerError(f"{self.who}: weight must not carry a gradient; detach it")
        bad = int((batch.t("mask") & ~torch.isfinite(weight)).sum())
        if bad:
            raise TrainerError(f"{self.who}: weight is not finite at {bad} trainable tokens")


def corrections_of(loss_config: LossConfig, resolve: Callable[[str], CorrectionFunction]) -> tuple[Correction, ...]:
    """The chosen correction, then OPSM.

    Args:
        resolve: function of a registered name or path.

    Raises:
        ConfigError: options that the function does not take or that it refuses, all that can be known without data.
    """
    wanted: dict[str, Mapping[str, Any]] = {}
    if loss_config.correction is not None:
        wanted[loss_config.correction] = loss_config.correction_options
    if loss_config.opsm_delta is not None:
        wanted["opsm"] = {"delta": loss_config.opsm_delta}
    chosen = tuple(Correction(name, resolve(name), options) for name, options in wanted.items())
    for correction in chosen:
        check_options(correction)
    return chosen


def check_options(correction: Correction) -> None:
    """Try it on a batch of one token.

    Raises:
        ConfigError: an option that the function does not take, or a value that it refuses.
    """
    parameters = list(inspect.signature(correction.function).parameters.values())
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    unread = sorted(correction.options.keys() - set(known))
    if unread and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ConfigError(
            f"correction {correction.name!r} does not read {', '.join(unread)} "
            f"(it reads: {', '.join(known) or 'no options'})"
        )
    columns: dict[str, Any] = {name: np.ones(1) for name in SCHEMA}
    batch = StepBatch.of(**columns)
    try:
        correction(batch.with_old_logp(batch.t("rollout_logp")), torch.zeros(1))
    except (TypeError, ValueError) as error:  # a value of another type than the function works with
        raise ConfigError(f"correction {correction.name!r} with options {dict(correction.options)}: {error}") from error


@dataclass(frozen=True)
class Combined:
    """All corrections of a step together.

    Attributes:
        weight: [R] float32 product of weights, 0 where any of them rejects; None where there is nothing to correct.
        mask: [R] bool tokens that are left in the denominators.
    """

    weight: torch.Tensor | None
    mask: torch.Tensor
    metrics: Mapping[str, float]


def combine(
    corrections: Sequence[Correction], batch: StepBatch, advantage: torch.Tensor, mask: torch.Tensor
) -> Combined:
    """Run them. advantage: [R]; mask: [R] bool trainable tokens that count."""
    weight: torch.Tensor | None = None
    metrics: dict[str, float] = {}
    left = mask
    seen = replace(batch, mask=mask.numpy())
    for correction in corrections:
        result = correction.run(seen, advantage)
        here = torch.ones(len(mask)) if result.weight is None else result.weight.float()
        if result.keep is not None:
            here = torch.where(result.keep, here, torch.zeros(()))
            left = left & result.keep if result.leaves_denominator else left
        weight = here if weight is None else weight * here
        metrics |= result.metrics
    return Combined(weight, left, metrics)
