"""What a step is trained on: an algorithm with its options, how tokens are weighed, and what is added around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.algorithms.correction import Correction, corrections_of
from vime_core.algorithms.loss_config import NO_LOSS_CONFIG, LossConfig
from vime_core.algorithms.options import aggregation_of, options_of, required_columns

if TYPE_CHECKING:
    from vime_core.algorithms.correction import CorrectionFunction
    from vime_core.api import Algorithm, Options
    from vime_core.config import Config


@dataclass(frozen=True)
class Objective:
    """Resolved once a run.

    Attributes:
        options: all that the algorithm reads, resolved.
        aggregation: name of the token weights; None is the algorithm's own.
        loss_config: what the framework adds around the algorithm. corrections: its corrections, resolved.
        fixed_length: tokens that aggregation ``fixed_length`` divides by: the longest possible response.
        source: the algorithm's plugin, for messages; "" is the core's.
    """

    algorithm: Algorithm
    options: Options
    aggregation: str | None = None
    loss_config: LossConfig = NO_LOSS_CONFIG
    corrections: Sequence[Correction] = ()
    fixed_length: int | None = None
    source: str = ""

    @property
    def who(self) -> str:
        """The algorithm, as messages name it."""
        return f"algorithm {self.algorithm.name!r}{self.source}"

    @classmethod
    def of(cls, config: Config, algorithm: Algorithm, resolve: Callable[[str], CorrectionFunction]) -> Objective:
        """What the configuration asks for. resolve: a correction's function by its name or path.

        Raises:
            ConfigError: options that algorithm or correction do not read or refuse, or an unknown aggregation.
        """
        loss_config = LossConfig.of(config)
        return cls(
            algorithm,
            options_of(config, algorithm),
            aggregation_of(config, algorithm),
            loss_config,
            corrections_of(loss_config, resolve),
            config.rollout.rollout_max_response_len,
        )

    @property
    def needs(self) -> frozenset[str]:
        """What a batch must have for this algorithm under these options, and for what is added around it."""
        return required_columns(self.algorithm, self.options) | self.loss_config.needs

    @property
    def recompute_old_logprobs(self) -> bool:
        """Something reads ``old_logp`` once a step, before any micro-batch."""
        return self.algorithm.recompute_old_logprobs or self.loss_config.recompute_old_logprobs

    def wants_old_logp(self, optimizer_steps: int) -> bool:
        """Whether the trainer must compute log-probs before the stages. With a single optimizer step they are the
        current ones, detached, and the second forward pass is saved, unless something reads them before; and the
        sampler's may stand for them."""
        if self.loss_config.use_rollout_logprobs or "old_logp" not in self.needs:
            return False
        return optimizer_steps > 1 or self.recompute_old_logprobs
