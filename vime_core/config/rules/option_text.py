"""How a violation names an option: flag, value and the layer it came from."""

from __future__ import annotations

from typing import Any

from vime_core.config.catalogue import as_flag
from vime_core.config.sections import SECTIONS, Config


def value_of(config: Config, name: str) -> Any:
    """The value of a section's field by its (unique) name."""
    for section in SECTIONS:
        holder = getattr(config, section)
        if hasattr(holder, name):
            return getattr(holder, name)
    raise KeyError(name)


def given(config: Config, name: str) -> bool:
    """Somebody asked for it: it did not come from the defaults, and it is not a switch that is off. A recipe that says
    what holds anyway asks for nothing: a run's own config.toml writes out every value, and has to run again."""
    value, source = value_of(config, name), config.provenance.get(name, "default")
    if source == "default" or value is None or value is False:
        return False
    return not (source.startswith("recipe ") and value == value_of(Config(), name))


def flag(config: Config, *names: str) -> str:
    """``--lr 1e-05 (flag --lr) and --min-lr 0.1 (default)``."""
    return " and ".join(_one(config, name) for name in names)


def _one(config: Config, name: str) -> str:
    value = value_of(config, name)
    source = config.provenance.get(name, "default")
    if isinstance(value, bool):
        shown = as_flag(name) if value else as_flag("no_" + name)
    elif isinstance(value, list):
        shown = f"{as_flag(name)} {' '.join(map(str, value))}".rstrip()
    else:
        shown = f"{as_flag(name)} {value}"
    return f"{shown} ({source})"
