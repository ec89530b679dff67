"""Placeholders in values: ``{run}``, ``{prepared.hf}``, ``{name}``. Filled once, when their values are known.

``{{name}}`` stands for a literal ``{name}``. Braces around anything but a dotted name (JSON, templates) are left alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from vime_core.api import ConfigError
from vime_core.config.catalogue import as_flag, plain
from vime_core.config.frozen import FrozenDict
from vime_core.config.nearest import did_you_mean
from vime_core.config.sections import SECTIONS, Config

_NAME = r"[A-Za-z_][A-Za-z0-9_.\-]*"
#: filled in by the run folder itself, before there is a {run}
_EXEMPT = ("run_dir",)
_PATTERN = re.compile(r"\{\{(" + _NAME + r")\}\}|\{(" + _NAME + r")\}")


def placeholders(text: str) -> list[str]:
    """Names of the placeholders in a text, in order."""
    return [match[2] for match in _PATTERN.finditer(text) if match[2]]


def fill_text(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders replaced. Raises ConfigError at one without a value."""

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return "{" + match[1] + "}"
        if match[2] not in values:
            known = ", ".join("{" + name + "}" for name in values) or "none"
            near = did_you_mean(match[2], values)
            raise ConfigError(f"unknown placeholder {{{match[2]}}} in {text!r}{near} (known here: {known})")
        return str(values[match[2]])

    return _PATTERN.sub(replace, text)


def fill(config: Config, values: Mapping[str, str]) -> Config:
    """A copy with the placeholders in every string replaced, in lists, tables and plugin options too; ``run_dir``
    stays as it is, since the run folder fills it in.

    Raises:
        ConfigError: all placeholders that have no value, each with the option it stands in.
    """
    problems: list[str] = []

    def one(name: str, value: Any) -> Any:
        if name in _EXEMPT:
            return value
        try:
            return _map_strings(value, lambda text: fill_text(text, values))
        except ConfigError as error:
            problems.extend(f"{as_flag(name)}: {violation}" for violation in error.violations)
            return value

    changed: dict[str, Any] = {name: _fill_fields(getattr(config, name), "", one) for name in SECTIONS}
    for place, prefix in (("vllm", "vllm_"), ("router", "router_"), ("megatron_extra", "")):
        changed[place] = FrozenDict({key: one(prefix + key, value) for key, value in getattr(config, place).items()})
    changed["plugins"] = FrozenDict(
        {name: _fill_fields(kept, plain(name) + "_", one) for name, kept in config.plugins.items()}
    )
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(config, **changed)


def _fill_fields(holder: Any, prefix: str, one: Callable[[str, Any], Any]) -> Any:
    if isinstance(holder, Mapping):
        return {key: one(prefix + key, value) for key, value in holder.items()}
    fields = [field.name for field in dataclasses.fields(holder)]
    return dataclasses.replace(holder, **{name: one(prefix + name, getattr(holder, name)) for name in fields})


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_map_strings(item, change) for item in value)
    if isinstance(value, Mapping):
        return {key: _map_strings(item, change) for key, item in value.items()}
    return value
