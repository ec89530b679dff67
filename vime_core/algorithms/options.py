"""Options of the chosen algorithm: its defaults, overlaid with the user's. What it does not read is an error."""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Any

from vime_core.algorithms.kl import KINDS
from vime_core.algorithms.stages import DeclaredOptions
from vime_core.api import Algorithm, ConfigError, Options
from vime_core.batch import check_aggregation
from vime_core.config import Config
from vime_core.plugin import BLAMABLE, describe, short


def options_of(config: Config, algorithm: Algorithm) -> Options:
    """Flags marked as an algorithm's (None means not given), then ``algorithm_options``, over the defaults.

    A supervised stage shares its flags with others and takes what it reads of them.

    Raises:
        ConfigError: options that the algorithm does not read, of another type than their default, given twice, or that
            the algorithm itself refuses; all together.
    """
    if config.train.loss_type == "sft_loss":
        return known_options(config, algorithm)
    flags, options = _flags(config), config.algorithm.algorithm_options
    twice = flags.keys() & options.keys()
    wrong = [f"{name} is given both as a flag and in algorithm_options; keep one" for name in sorted(twice)]
    return merge_options(algorithm, {**flags, **options}, wrong)


def known_options(config: Config, algorithm: Algorithm) -> Options:
    """The same without a check, and without what the algorithm does not read."""
    given = {**_flags(config), **config.algorithm.algorithm_options}
    return {**algorithm.defaults, **{name: value for name, value in given.items() if name in algorithm.defaults}}


def value_faults(algorithm: Algorithm, options: Options) -> list[str]:
    """What is wrong with the values of :func:`known_options`: their types, else what the algorithm itself says."""
    wrong = [
        f"{name} is {options[name]!r}; algorithm {algorithm.name!r} takes {_kind(default)} there"
        for name, default in algorithm.defaults.items()
        if not _fits(options[name], default)
    ]
    if wrong:
        return wrong
    try:
        found = list(algorithm.violations(DeclaredOptions(options)))
    except BLAMABLE as error:
        found = [f"violations: {describe(error)}"]
    return [f"algorithm {algorithm.name!r}: {message}" for message in found]


def required_columns(algorithm: Algorithm, options: Options) -> frozenset[str]:
    """What the algorithm says that the batch must have.

    Raises:
        ConfigError: it raised, or said something else.
    """
    try:
        found = algorithm.required(DeclaredOptions(options))
    except BLAMABLE as error:
        raise ConfigError(f"algorithm {algorithm.name!r}: required: {describe(error)}") from error
    if not isinstance(found, Set) or not all(isinstance(name, str) for name in found):
        raise ConfigError(
            f"algorithm {algorithm.name!r}: required gave {short(found)}; it must give a set of names of columns, as "
            "`needs` is"
        )
    return frozenset(found)


def merge_options(algorithm: Algorithm, given: Mapping[str, Any], wrong: list[str] | None = None) -> Options:
    """Defaults overlaid with ``given``; ``wrong``: violations found before.

    Raises:
        ConfigError: see :func:`options_of`.
    """
    found = list(wrong or ())
    found += [_unread(algorithm, name) for name in given if name not in algorithm.defaults]
    options = MappingProxyType({**algorithm.defaults, **given})
    found += value_faults(algorithm, options)
    if found:
        raise ConfigError(found)
    return options


def aggregation_of(config: Config, algorithm: Algorithm) -> str:
    """The aggregation's name: the one given, else the algorithm's.

    Raises:
        ConfigError: unknown, or contradicted by ``calculate_per_token_loss``.
    """
    given = config.train.aggregation
    if config.train.calculate_per_token_loss:
        if given not in (None, "token_mean"):
            raise ConfigError(f"calculate_per_token_loss means aggregation token_mean, but aggregation is {given}")
        return "token_mean"
    return check_aggregation(given or algorithm.aggregate)


def _flags(config: Config) -> dict[str, Any]:
    """Those marked as an algorithm's that were given."""
    section = config.algorithm
    flags = {f.name: getattr(section, f.name) for f in dataclasses.fields(section) if f.metadata.get("algorithm")}
    return {name: value for name, value in flags.items() if value is not None}


def _unread(algorithm: Algorithm, name: str) -> str:
    near = difflib.get_close_matches(name, algorithm.defaults, n=1)
    reads = f"it reads {', '.join(sorted(algorithm.defaults))}" if algorithm.defaults else "it has no options"
    hint = f"nearest: {near[0]}; " if near else ""
    return f"algorithm {algorithm.name!r} does not read {name}; {hint}{reads}"


def _fits(value: Any, default: Any) -> bool:
    """A default of None takes anything; numbers take numbers, everything else its own type."""
    if default is None:
        return True
    if isinstance(default, bool) or not isinstance(default, int | float):
        return isinstance(value, type(default))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(default: Any) -> str:
    numeric = isinstance(default, int | float) and not isinstance(default, bool)
    return "a number" if numeric else f"a {type(default).__name__}"


# values of options: one name, one meaning, one range --------------------------------------------------------------
_FINITE = sys.float_info.max
_POSITIVE = (sys.float_info.min, _FINITE, "a number above 0")
_FROM_0_TO_1 = (0.0, 1.0, "a number from 0 to 1")
_AT_LEAST_0 = (0.0, _FINITE, "a number of at least 0")

#: option -> (least, most, what to give)
RANGES: Mapping[str, tuple[float, float, str]] = MappingProxyType(
    {
        "eps_clip": _FROM_0_TO_1,
        "eps_clip_high": (0.0, math.inf, "a number of at least 0"),
        "eps_clip_c": (math.nextafter(1.0, 2.0), math.inf, "a number above 1"),
        "kl_coef": _AT_LEAST_0,
        "gamma": _FROM_0_TO_1,
        "lambd": _FROM_0_TO_1,
        "value_clip": _POSITIVE,
        "tau_pos": _POSITIVE,
        "tau_neg": _POSITIVE,
        "teacher_coef": _POSITIVE,
    }
)
#: option -> the values it may have
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType({"kl_estimator": KINDS})


def out_of_range(options: Options) -> list[str]:
    """What is wrong, one line an option. None stands for "not given" and is fine; unknown names are not looked at."""
    wrong = [
        f"{name} is {options[name]!r}; give {want}"
        for name, (least, most, want) in RANGES.items()
        if options.get(name) is not None and not _within(options[name], least, most)
    ]
    return wrong + [
        f"{name} is {options[name]!r}; give one of {', '.join(known)}"
        for name, known in CHOICES.items()
        if name in options and options[name] not in known
    ]


def _within(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
