"""The rollout side of a run in one object: data in, batches and metrics out. Another place decides where it lives."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vime_core.api import (
    CheckpointError,
    ConfigError,
    GenerationClient,
    RolloutGenerator,
    SamplingParams,
)
from vime_core.batch import StepBatch
from vime_core.config import Config
from vime_core.data import DataBuffer, Ledger, LengthLimits, PromptDataset, generation_deadline, load_tokenizer
from vime_core.plugin import Plugins, make
from vime_core.rollout.convert import records, to_batch
from vime_core.rollout.driver import Bounds, RolloutDriver
from vime_core.rollout.evaluation import Evaluation, open_eval_sets
from vime_core.rollout.filters import GroupFilter
from vime_core.rollout.generate import Generate, RolloutContext
from vime_core.rollout.group_runner import Gate, GroupRunner
from vime_core.rollout.metrics import step_metrics
from vime_core.rollout.sampling import eval_params, train_params
from vime_core.rollout.scoring import Scorer
from vime_core.rollout.streams import streams_of
from vime_core.rollout.teacher import TeacherScorer
from vime_core.runtime import warn

#: a larger part of unscored samples in a step is worth a warning of its own
_UNSCORED = 0.1


@dataclass(frozen=True)
class RolloutResult:
    """Of one step. ``samples`` are the records for the run folder (empty without ``--save-samples``)."""

    batch: StepBatch
    metrics: dict[str, float]
    samples: list[dict[str, Any]]


class RolloutWorker:
    """Built once a run; everything that can be wrong with data, reward or filter is said here.

    Args:
        client: of the engines; None where they are attached to ``gate`` later, or where the run has none.

    Attributes:
        gate: of the engines' client.
        teacher: to be attached to the teacher engine before a rollout; None where the run has none.

    Raises:
        DataError, RewardError, ConfigError, PluginError: before anything is sampled.
    """

    def __init__(self, config: Config, plugins: Plugins, client: GenerationClient | None = None) -> None:
        self._config, self._plugins = config, plugins
        self.gate = Gate(client)
        self._tokenizer = load_tokenizer(config.model.hf_checkpoint)
        context = RolloutContext(config, self._tokenizer, LengthLimits.of(config))
        function = config.rollout.rollout_function
        self._source = plugins.rollouts.source(function)
        kind = plugins.rollouts.resolve(function)
        self._generator = make(f"rollout {function}{self._source}", lambda: make_generator(kind, context))
        self._scorers: dict[str, Scorer] = {}
        self._filter: GroupFilter | None = None
        self._data = self._open_data()
        self.ledger = Ledger()
        self.teacher = TeacherScorer.of(config) if config.teacher_engine else None
        self._driver = self._make_driver(plugins)
        self._evaluation = self._make_evaluation(plugins, context)

    @property
    def prompts_per_epoch(self) -> int:
        return len(self._dataset)

    @property
    def eval_samples(self) -> int:
        """Samples that an evaluation draws."""
        return 0 if self._evaluation is None else self._evaluation.samples

    async def rollout(self, step: int) -> RolloutResult:
        """Collect, score and convert the samples of one step."""
        collected = await self._driver.collect(step, self._groups)
        batch = to_batch(
            collected.groups,
            rewarded=self._rewarded,
            streams=streams_of(self._config, type(self._generator)),
        )
        metrics = step_metrics(collected) | self.ledger.metrics()
        self._warn_of_unscored(step, metrics.get("rollout/unscored_samples", 0.0) / max(1, len(batch)))
        if self.teacher is not None:
            metrics["perf/teacher_time"] = self.teacher.take_seconds()
        return RolloutResult(batch, metrics, records(collected) if self._config.observe.save_samples else [])

    async def evaluate(self, step: int) -> dict[str, float]:
        """Metrics of all evaluation sets; empty without any."""
        self.gate.open()
        return {} if self._evaluation is None else await self._evaluation.run()

    def state(self) -> dict[str, Any]:
        """JSON values: the exact position in the data, and where every group went."""
        return {"buffer": self._data.state_dict(), "ledger": self.ledger.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raises:
        CheckpointError: the state is not of this data, or incomplete.
        """
        try:
            buffer, ledger = state["buffer"], state["ledger"]
            self._data.load_state_dict(buffer)
            self.ledger.load_state_dict(ledger)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"rollout state of the checkpoint is incomplete: {error!r}") from error

    async def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()
        if self._filter is not None:
            self._filter.close()
        await self.gate.close()

    def _warn_of_unscored(self, step: int, ratio: float) -> None:
        if ratio >= _UNSCORED:
            warn("unscored samples", f"step {step}: {ratio:.0%} of the samples trained on have no score")

    # parts ---------------------------------------------------------------------------------------------------
    @property
    def _groups(self) -> int:
        size = self._config.rollout.rollout_batch_size
        if not size:
            raise ConfigError("--rollout-batch-size is not set")
        return size

    @property
    def _rewarded(self) -> bool:
        """Supervised data has no reward; an algorithm that does not read it may have one."""
        if self._generator.supervised:
            return False
        algorithm = self._plugins.algorithms.resolve(self._config.algorithm.advantage_estimator)
        return "reward" in algorithm.needs or self._config.rollout.reward is not None

    def _open_data(self) -> DataBuffer:
        config, rollout = self._config, self._config.rollout
        self._dataset = PromptDataset.open(config, self._tokenizer, supervised=self._generator.supervised)
        data = DataBuffer(
            self._dataset, config.data.rollout_seed, config.data.rollout_shuffle, rollout.n_samples_per_prompt
        )
        data.require(max(self._groups, rollout.over_sampling_batch_size or 0))
        return data

    def _make_driver(self, plugins: Plugins) -> RolloutDriver:
        config, rollout = self._config, self._config.rollout
        supervised = self._generator.supervised
        scorer = self._scorer(plugins, rollout.reward) if self._rewarded else None
        path = rollout.dynamic_sampling_filter_path
        if path is not None and not supervised:
            self._filter = GroupFilter(plugins.filters.resolve(path), path + plugins.filters.source(path))
        params = SamplingParams(max_tokens=0) if supervised else train_params(config)
        timeout, trained = generation_deadline(config), not supervised
        runner = GroupRunner(self._generator, self.gate, params, scorer, timeout, self.teacher, trained, self._source)
        return RolloutDriver(self._data, self.ledger, runner, Bounds.of(config), self._filter)

    def _make_evaluation(self, plugins: Plugins, context: RolloutContext) -> Evaluation | None:
        config = self._config
        if not config.eval.eval_prompt_data:
            return None
        # Supervised data has no answers to sample: its evaluation asks the engines as plainly as can be.
        generator = Generate(context) if self._generator.supervised else self._generator
        scorer = self._scorer(plugins, config.eval.eval_reward or config.rollout.reward)
        runner = GroupRunner(generator, self.gate, eval_params(config), scorer, generation_deadline(config))
        if generator is self._generator:
            runner = replace(runner, source=self._source)
        in_flight = config.engine.vllm_server_concurrency * max(1, config.num_engines)
        return Evaluation(
            open_eval_sets(config, self._tokenizer),
            runner,
            config.eval.n_samples_per_eval_prompt,
            config.rollout.rollout_max_failure_ratio,
            max(1, in_flight // config.eval.n_samples_per_eval_prompt),
        )

    def _scorer(self, plugins: Plugins, name: str | None) -> Scorer:
        if name is None:
            raise ConfigError("no reward: --reward names a registered one (vime plugins list) or pkg.mod:function")
        if name not in self._scorers:
            source = plugins.rewards.source(name)
            self._scorers[name] = Scorer(plugins.rewards.resolve(name), f"{name}{source}", self._config.rollout)
        return self._scorers[name]


def make_generator(kind: type[RolloutGenerator], context: RolloutContext) -> RolloutGenerator:
    """An instance of a registered rollout, with the context where its constructor takes one."""
    takes_one = len(inspect.signature(kind).parameters) > 0
    return kind(context) if takes_one else kind()  # type: ignore[call-arg]
