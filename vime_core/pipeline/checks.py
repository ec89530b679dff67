"""The last checks before a process is started: the rules, with what only plugins and files can tell, and the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError
from vime_core.config import Facts, placeholders, read_model, violations
from vime_core.pipeline.rows import check_rows
from vime_core.plugin import make
from vime_core.rollout import check_teacher, streams_of

if TYPE_CHECKING:
    from vime_core.algorithms import LossConfig
    from vime_core.api import Algorithm
    from vime_core.config import Config

#: columns of a step batch that every run can fill: the reference and a critic are models that the trainer builds
SUPPLIES = frozenset({"old_logp", "rollout_logp", "reward", "entropy", "ref_logp", "values"})


def check_before_start(config: Config, plugins: Any) -> None:
    """Everything that can be known now; what still holds a placeholder is looked at again once it is filled.

    Raises:
        ConfigError: all violations together. DataError, PluginError: the first file or plugin that cannot be used.
    """
    found = [*violations(config, facts_of(config, plugins)), *_option_faults(config, plugins)]
    if found:
        raise ConfigError(found)
    rollout = config.rollout
    generator = plugins.rollouts.resolve(rollout.rollout_function)
    for name in (rollout.reward, config.eval.eval_reward):
        if name is not None:
            plugins.rewards.resolve(name)
    if rollout.dynamic_sampling_filter_path is not None:
        plugins.filters.resolve(rollout.dynamic_sampling_filter_path)
    if config.observe.use_tensorboard:
        from vime_core.observe import require_tensorboard

        require_tensorboard()
    check_teacher(config)
    check_rows(config, supervised=generator.supervised)


def facts_of(config: Config, plugins: Any) -> Facts:
    """What the rules need to know from outside the configuration."""
    # before anything heavy is imported: without a device nothing else matters
    device = plugins.choose_device(config.cluster.device).load()
    from vime_core.algorithms import required_columns, value_faults
    from vime_core.training import FAMILIES, REFUSED_FAMILIES

    algorithm, options, terms = _loss_of(config, plugins)
    known = algorithm.needs if value_faults(algorithm, options) else required_columns(algorithm, options)
    folder = config.model.hf_checkpoint
    return Facts(
        model=None if folder is None or placeholders(folder) else read_model(folder),
        model_types=frozenset(FAMILIES),
        refused_types=REFUSED_FAMILIES,
        algorithm_defaults=algorithm.defaults,
        group_based=algorithm.group_based,
        needs=known | terms.needs,
        reads=algorithm.needs,
        supplies=SUPPLIES
        | ({"teacher_logp"} if config.algorithm.opd_type is not None else set())
        | {stream.name for stream in streams_of(config, plugins.rollouts.resolve(config.rollout.rollout_function))},
        supports_colocate=device.supports_colocate,
        supports_sleep=device.supports_sleep,
    )


def _loss_of(config: Config, plugins: Any) -> tuple[Algorithm, Mapping[str, Any], LossConfig]:
    """The algorithm, its options as far as it reads them, and the terms around it."""
    from vime_core.algorithms import LossConfig, known_options

    supervised = config.train.loss_type == "sft_loss"
    name = "sft" if supervised else config.algorithm.advantage_estimator
    algorithm = make(f"algorithm {name!r}{plugins.algorithms.source(name)}", plugins.algorithms.resolve(name))
    return algorithm, known_options(config, algorithm), LossConfig.of(config)


def _option_faults(config: Config, plugins: Any) -> list[str]:
    """What only the algorithm and the corrections themselves can say of their options."""
    from vime_core.algorithms import corrections_of, value_faults

    algorithm, options, terms = _loss_of(config, plugins)
    found = value_faults(algorithm, options)
    try:
        corrections_of(terms, plugins.corrections.resolve)
    except ConfigError as error:
        found += error.violations
    return found
