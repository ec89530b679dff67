"""How long generation may take before its speed is known: from lengths, at a speed that no working engine is below."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from vime_core.config import Config
from vime_core.data.limits import LengthLimits

#: tokens a second of each sequence under way; a model that is slower needs --generate-timeout-secs
SLOWEST = 2.0
#: seconds beside: the first requests of an engine compile and warm up, tools and environments take their time
BESIDE = 600.0


@dataclass(frozen=True)
class GenerationBound:
    """Seconds for ``samples`` of at most ``length`` tokens, ``at_a_time`` of them together."""

    samples: int
    length: int
    at_a_time: int

    @classmethod
    def of(cls, config: Config, samples: int | None = None) -> GenerationBound:
        """Of a step's samples in flight, or of so many."""
        rollout, engine = config.rollout, config.engine
        groups = max(rollout.rollout_batch_size or 1, rollout.over_sampling_batch_size or 1)
        given = [rollout.rollout_max_response_len, config.eval.eval_max_response_len]
        known = [length for length in given if length is not None] or [LengthLimits.of(config).context or 0]
        at_a_time = engine.vllm_server_concurrency * max(1, config.num_engines)
        return cls(groups * rollout.n_samples_per_prompt if samples is None else samples, max(known), at_a_time)

    @property
    def seconds(self) -> float:
        return BESIDE + ceil(self.samples / self.at_a_time) * self.length / SLOWEST

    def __str__(self) -> str:
        return (
            f"{self.seconds:.0f} s, for {self.samples} samples of at most {self.length} tokens, {self.at_a_time} at a "
            f"time, at {SLOWEST:g} tokens/s each"
        )


def generation_deadline(config: Config) -> float:
    """Seconds for the generation of one group, which may wait for all others: as given, or the bound."""
    given = config.rollout.generate_timeout_secs
    return GenerationBound.of(config).seconds if given is None else given
