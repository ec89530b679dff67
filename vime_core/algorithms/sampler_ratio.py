"""The ratio between trainer and sampler, rho = exp(old_logp - rollout_logp), of tokens and of whole sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vime_core.algorithms.common import LOG_RATIO_LIMIT
from vime_core.api import ConfigError

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


@dataclass(frozen=True)
class SamplerRatio:
    """rho of every token, and its sums over samples. R tokens, N samples.

    Attributes:
        log: [R] float64 log rho within +-20, 0 where it is unknown and outside the mask.
        mask: [R] bool trainable tokens. known: [R] bool those of them with a log-prob of the sampler.
        seg: [R] sample of each token. counts: [N] known tokens of each sample.
    """

    log: torch.Tensor
    mask: torch.Tensor
    known: torch.Tensor
    seg: torch.Tensor
    counts: torch.Tensor

    @classmethod
    def of(cls, batch: StepBatch, logp: torch.Tensor | None = None) -> SamplerRatio:
        """logp: [R] the trainer's log-probs; default: the batch's ``old_logp``."""
        ours = (batch.t("old_logp") if logp is None else logp).double()
        mu, mask = batch.t("rollout_logp").double(), batch.t("mask")
        known = mask & ~torch.isnan(mu)
        bounded = (ours - mu).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        log = torch.where(known, bounded, torch.zeros((), dtype=torch.float64))
        return cls(log, mask, known, batch.seg(), batch.trainable_counts(known))

    @property
    def rho(self) -> torch.Tensor:
        """[R]; 1 where it is unknown."""
        return self.log.exp()

    @property
    def bounded_sums(self) -> torch.Tensor:
        """[N] sum of log rho, within +-20."""
        return self._sums.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    @property
    def means(self) -> torch.Tensor:
        """[N] mean of log rho over the sample's known tokens; 0 without any."""
        return self._sums / self.counts.clamp(min=1)

    @property
    def _sums(self) -> torch.Tensor:
        return torch.zeros(len(self.counts), dtype=torch.float64).index_add_(0, self.seg, self.log)

    @property
    def missing(self) -> float:
        """Trainable tokens without a log-prob of the sampler."""
        return float((self.mask & ~self.known).sum())

    def level(self, name: str) -> torch.Tensor:
        """[R] the ratio of the token, or of its sample: the product (``sequence``) or the geometric mean.

        Raises:
            ConfigError: unknown level.
        """
        if name == "token":
            return self.rho
        if name == "sequence":
            return self.bounded_sums.exp()[self.seg]
        if name == "geometric":
            return self.means.exp()[self.seg]
        raise ConfigError(f"level {name!r} is unknown; give token, sequence or geometric")

    def token_mean(self, x: torch.Tensor) -> float:
        """Over trainable tokens; NaN without any. x: [R] numbers or bools."""
        return float(x[self.mask].double().mean())

    def sample_ratio(self, hit: torch.Tensor) -> float:
        """Ratio of samples with a trainable token that have one in ``hit`` [R]."""
        every, some = (len(torch.unique(self.seg[x])) for x in (self.mask, self.mask & hit))
        return some / every if every else float("nan")


def effective_sample_ratio(weight: torch.Tensor) -> float:
    """Effective sample size over the number of weights: ``(sum w)^2 / (n sum w^2)``; NaN if all are 0. weight: [n]."""
    w = weight.double()
    return float(w.sum().square() / (len(w) * w.square().sum()))
