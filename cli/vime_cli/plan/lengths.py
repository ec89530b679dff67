"""How long samples are: told as quantiles, counted in the data set, or taken at their longest where nobody says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_cli.plan.prompts import AT_LONGEST, Prompts
from vime_core.api import ConfigError
from vime_core.config import longest_sample

if TYPE_CHECKING:
    from vime_core.config import Config

#: positions of the quantiles in a step, coprime to most batch sizes, so that long samples are spread over groups
_STRIDE = 0.6180339887498949


@dataclass(frozen=True)
class Lengths:
    """(prompt, response) tokens of each sample of a step, and a sentence on where they are from."""

    samples: Sequence[tuple[int, int]]
    longest: int
    source: str

    @property
    def totals(self) -> list[int]:
        return [prompt + response for prompt, response in self.samples]

    @property
    def tokens(self) -> int:
        return sum(self.totals)

    @property
    def responses(self) -> int:
        return sum(response for _, response in self.samples)

    @classmethod
    def of(
        cls,
        config: Config,
        prompts: Prompts = AT_LONGEST,
        response: Sequence[int] = (),
        context: int | None = None,
    ) -> Lengths:
        """Of a stage.

        Args:
            response: quantiles, evenly apart: "10,40,200" are the shortest, the median and the longest. Empty: the
                longest that the configuration allows. context: positions of the model.

        Raises:
            ConfigError: nothing says how long a prompt or a response may be, or they are longer than a sample may be.
        """
        limit = longest_sample(config) or context
        answers = list(response) or [_response(config, limit)]
        asked = list(prompts.lengths) or [_prompt(config, limit, max(answers))]
        longest = max(asked) + max(answers)
        if limit is not None and longest > limit and (response or prompts.told):
            raise ConfigError(
                f"prompts of {max(asked)} and responses of {max(answers)} tokens are longer than the {limit} of the "
                "longest sample: lower --prompt-tokens or --response-tokens"
            )
        count = max(config.samples_per_step, 1)
        pairs = [(_at(asked, 7 * i), _at(answers, i)) for i in range(count)]
        # a response ends where the context does, as when it is sampled
        samples = [(p, r if limit is None else max(min(r, limit - p), 1)) for p, r in pairs]
        source = f"prompts: {prompts.source}; responses: {'--response-tokens' if response else 'at their longest'}"
        return cls(samples, min(longest, limit or longest), source)


def _response(config: Config, limit: int | None) -> int:
    given = config.rollout.rollout_max_response_len
    if given:
        return given
    if limit is None:
        raise ConfigError("nothing says how long a sample is: give --rollout-max-response-len or --response-tokens")
    return max(limit // 2, 1)


def _prompt(config: Config, limit: int | None, response: int) -> int:
    given = config.data.rollout_max_prompt_len
    if given:
        return given
    if limit is None:
        raise ConfigError("nothing says how long a prompt is: give --rollout-max-prompt-len or --prompt-tokens")
    return max(limit - response, 1)


def _at(quantiles: Sequence[int], index: int) -> int:
    """Piecewise linear between quantiles; the sequence of indices fills them evenly."""
    if len(quantiles) == 1:
        return quantiles[0]
    place = ((index + 0.5) * _STRIDE % 1.0) * (len(quantiles) - 1)
    low = min(int(place), len(quantiles) - 2)
    return round(quantiles[low] + (place - low) * (quantiles[low + 1] - quantiles[low]))
