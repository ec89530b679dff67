"""Evaluation on held-out prompts: every prompt of every set, sampled under the evaluation's own parameters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from vime_core.api import ConfigError, Group, RewardError, Score
from vime_core.config import Config
from vime_core.data import Entry, PromptBuilder, PromptDataset, RowSchema, Tokenizer, make_samples
from vime_core.rollout.driver import first_reasons
from vime_core.rollout.filters import reward_values
from vime_core.rollout.group_runner import GroupRunner, InFlightGroup
from vime_core.rollout.metrics import length_metrics, truncated_ratio


def open_eval_sets(config: Config, tokenizer: Tokenizer) -> list[PromptDataset]:
    """The sets of ``--eval-prompt-data name path [name path ...]``.

    Raises:
        ConfigError: the list is no list of pairs, or a name comes twice.
        DataError: as for training prompts.
    """
    words = config.eval.eval_prompt_data
    names = words[::2]
    if len(words) % 2 or len(set(names)) != len(names):
        raise ConfigError(f"--eval-prompt-data takes pairs of a name and a path, each name once; got {' '.join(words)}")
    schema = RowSchema.of_evaluation(config)
    # each set counts its own bad rows
    return [PromptBuilder.of(config, schema, tokenizer).read(name, [path]) for name, path in zip(names, words[1::2])]


@dataclass
class Evaluation:
    """Runs the sets. Ids of its groups and rollouts are its own; they never meet those of the training stream.

    Attributes:
        failure_ratio: a larger part of groups without a result ends the run.
        in_flight: groups at a time.
    """

    sets: Sequence[PromptDataset]
    runner: GroupRunner
    n_samples: int
    failure_ratio: float
    in_flight: int

    @property
    def samples(self) -> int:
        """Of one evaluation."""
        return self.n_samples * sum(map(len, self.sets))

    async def run(self) -> dict[str, float]:
        """Raises:
        RewardError: too many groups failed or were not scored.
        """
        figures: dict[str, float] = {}
        for dataset in self.sets:
            figures |= self._figures(dataset, await self._sample(dataset))
        return figures

    async def _sample(self, dataset: PromptDataset) -> list[InFlightGroup]:
        groups = [
            InFlightGroup(Group(row, make_samples(dataset, Entry(row, row, row, row * self.n_samples), self.n_samples)))
            for row in range(len(dataset))
        ]
        waiting = iter(groups)

        async def work() -> None:
            for in_flight in waiting:
                in_flight.enter("generation")
                await self.runner.run(in_flight)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self.in_flight, len(groups))):
                workers.create_task(work())
        return groups

    def _figures(self, dataset: PromptDataset, groups: Sequence[InFlightGroup]) -> dict[str, float]:
        name = f"eval/{dataset.name}"
        good = [in_flight.group for in_flight in groups if not _failure(in_flight)]
        bad = Counter(reason for in_flight in groups if (reason := _failure(in_flight)))
        if bad.total() > self.failure_ratio * len(groups):
            raise RewardError(
                f"{name}: {bad.total()} of {len(groups)} prompts have no result "
                f"(--rollout-max-failure-ratio {self.failure_ratio:g}): {first_reasons(bad)}"
            )
        samples = [sample for group in good for sample in group.samples]
        scores = [sample.reward.value for sample in samples if isinstance(sample.reward, Score)]
        asked = len(groups) * self.n_samples
        figures = {f"{name}-strict": sum(scores) / asked, f"{name}-unscored_ratio": 1 - len(scores) / asked}
        figures |= {name: sum(scores) / len(scores)} if scores else {}
        if bad:
            figures[f"{name}-without_result"] = float(bad.total())
        figures |= truncated_ratio(samples, f"{name}-truncated_ratio") | length_metrics(samples, name)
        return figures | pass_at_k(good, name)


def _failure(in_flight: InFlightGroup) -> str:
    return in_flight.error or ("" if in_flight.group.finished else "aborted") or in_flight.unscored


def pass_at_k(groups: Sequence[Group], name: str) -> dict[str, float]:
    """``<name>-pass@k`` for k = 1, 2, 4, ... up to the group size, by the unbiased estimate 1 - C(n-c, k) / C(n, k)
    (Chen et al., arXiv 2107.03374, eq. 1). Only for rewards that are 0 or 1 and groups of one size above 1."""
    values = [reward_values(group.samples) for group in groups]
    sizes = {len(v) for v in values}
    if len(sizes) != 1 or max(sizes) < 2 or any(x not in (0.0, 1.0) for v in values for x in v):
        return {}
    n = sizes.pop()
    right = [int(sum(v)) for v in values]
    ks = [1 << power for power in range(n.bit_length()) if 1 << power <= n]
    return {f"{name}-pass@{k}": sum(1 - comb(n - c, k) / comb(n, k) for c in right) / len(right) for k in ks}
