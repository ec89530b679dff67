"""Rules that a configuration must keep, checked together after merging and before any process starts.

A rule is a small function of (config, facts) that returns nothing, one violation, or several. A violation says what,
the values with the layer each came from, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vime_core.api import ConfigError
from vime_core.config.facts import Facts
from vime_core.config.rules import (
    batches,
    colocation,
    inputs,
    layout,
    learning,
    needs,
    reference_models,
    required,
    routing,
    terms,
)
from vime_core.config.sections import Config

Rule = Callable[[Config, Facts], str | Iterable[str] | None]

RULES: tuple[Rule, ...] = (
    *required.RULES,
    *inputs.RULES,
    *reference_models.RULES,
    *learning.RULES,
    *needs.RULES,
    *terms.RULES,
    *batches.RULES,
    *layout.RULES,
    *colocation.RULES,
    *routing.RULES,
)
#: those about files, which need not be there yet when a run is planned
FILE_RULES: tuple[Rule, ...] = (*inputs.RULES, required.must_be_given)


def violations(config: Config, facts: Facts | None = None) -> list[str]:
    """Every broken rule, one line each, in the order of the rules."""
    found: list[str] = []
    for rule in RULES:
        broken = rule(config, facts or Facts())
        found += [broken] if isinstance(broken, str) else broken or []
    return list(dict.fromkeys(found))


def check(config: Config, facts: Facts | None = None) -> None:
    """Raise one ConfigError with every violation, if there is any."""
    found = violations(config, facts)
    if found:
        raise ConfigError(found)
