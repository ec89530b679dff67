"""A recipe: one TOML file, read strictly.

A key stands at the top or in its section's table; ``[vllm]``, ``[router]`` and ``[megatron]`` take upstream's names,
``[plugins.NAME]`` a plugin's options, ``plugin = [...]`` (or ``plugins = [...]`` where no such table is) the plugins to
load. Each ``[[stage]]`` has a name and lays the same shape over the rest.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime_core.api import ConfigError
from vime_core.config.catalogue import Catalogue, as_key
from vime_core.config.coerce import from_value
from vime_core.config.flags import Setting
from vime_core.config.sections import SECTIONS

_TABLES = (*SECTIONS, "vllm", "router")


@dataclass(frozen=True)
class Recipe:
    """The parsed file. ``stages``: (name, overlay)."""

    label: str = "recipe"
    base: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    plugins: tuple[str, ...] = ()


def load(path: str | None) -> Recipe:
    """Read the file. Raises ConfigError when it is not there, is not TOML, or its stages or plugins are malformed."""
    if path is None:
        return Recipe()
    label = f"recipe {Path(path).name}"
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"recipe {path}: cannot be read ({error.strerror}); the first argument is a TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path}: not valid TOML: {error}") from error
    return Recipe(label, data, _stages(data.pop("stage", []), label), tuple(_plugins(data, label)))


def _plugins(data: dict[str, Any], label: str) -> Iterator[str]:
    for name in ("plugin", "plugins"):
        if name == "plugins" and isinstance(data.get(name), dict):
            continue
        specs = data.pop(name, [])
        if not isinstance(specs, list) or not all(isinstance(spec, str) for spec in specs):
            raise ConfigError(f"{label}: {name} must be a list of plugin names, got {specs!r}")
        yield from specs


def _stages(tables: Any, label: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{label}: stages are written [[stage]], each with a name")
    stages: dict[str, Mapping[str, Any]] = {}
    for number, table in enumerate(tables, 1):
        overlay = dict(table)
        # a stage's own name; the run's name stays [run] name
        name = overlay.pop("name", None)
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ConfigError(f'{label}: [[stage]] number {number} needs name = "..." of letters, digits, - and _')
        if name in stages:
            raise ConfigError(f"{label}: two stages are called {name!r}")
        if "plugin" in overlay or isinstance(overlay.get("plugins"), list):
            raise ConfigError(f"{label}: stage {name} lists plugins; they are chosen for the whole run, at the top")
        stages[name] = overlay
    return tuple(stages.items())


def read_recipe(recipe: Recipe, catalogue: Catalogue, problems: list[str]) -> list[Setting]:
    """Settings of base and stages; what is wrong goes to ``problems``, each line naming file and key."""
    settings = list(_read(recipe.base, recipe.label, None, catalogue, problems))
    for name, overlay in recipe.stages:
        settings += _read(overlay, f"{recipe.label} stage {name}", name, catalogue, problems)
    return settings


def _read(
    data: Mapping[str, Any], source: str, stage: str | None, catalogue: Catalogue, problems: list[str]
) -> Iterator[Setting]:
    for place, name, value in _items(data, source, problems):
        where = f"[{place}] {name}" if place else name
        try:
            key = catalogue.find_in(place, name) if place else catalogue.find(name, as_key)
            yield Setting(key, from_value(key.annotation, value), source, stage)
        except ValueError as error:
            problems.append(f"{source}: {where}: {error}")
        except ConfigError as error:
            problems += [f"{source}: {where}: {violation}" for violation in error.violations]


def _items(data: Mapping[str, Any], source: str, problems: list[str]) -> Iterator[tuple[str, str, Any]]:
    """(table or "", key, value) of everything in the file."""
    for name, value in data.items():
        if name in _TABLES or name == "plugins":
            if not isinstance(value, dict):
                problems.append(f"{source}: {name} is a table: write [{name}] above its keys")
                continue
            for inner, item in value.items():
                if name != "plugins":
                    yield name, inner, item
                elif isinstance(item, dict):
                    yield from ((f"plugins.{inner}", option, v) for option, v in item.items())
                else:
                    problems.append(f"{source}: [plugins] {inner}: write [plugins.{inner}] above the plugin's options")
        else:
            yield "", name, value
