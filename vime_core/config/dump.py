"""A configuration as text: a recipe that repeats the run, and plain data for another process.

``to_toml`` writes every value with the layer it came from as a comment; read as a recipe it gives an equal ``Config``.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vime_core.api import ConfigError
from vime_core.config.catalogue import dataclass_keys, plain
from vime_core.config.coerce import from_value
from vime_core.config.frozen import FrozenDict
from vime_core.config.sections import SECTIONS, Config

_TABLES = (("vllm", "vllm_"), ("router", "router_"))


def to_toml(config: Config) -> str:
    """The run as a recipe. Options without a value are listed in comments, because TOML has no null."""
    lines = ["# Resolved configuration; behind each value the layer that set it."]
    if config.plugin_specs:
        lines.append(f"plugin = {_value(list(config.plugin_specs))}")
    for section in SECTIONS:
        extra = config.megatron_extra if section == "megatron" else {}
        lines += _table(section, {**_fields(getattr(config, section)), **extra}, "", config.provenance)
    for place, prefix in _TABLES:
        if getattr(config, place):
            lines += _table(place, getattr(config, place), prefix, config.provenance)
    for plugin, options in config.plugins.items():
        values, prefix = _fields(options), plain(plugin) + "_"
        table = list(_table(f"plugins.{plugin}", values, prefix, config.provenance))
        # Nobody set one: as a comment, so that the recipe also runs where this plugin is not installed.
        idle = all(config.provenance.get(prefix + name, "default") == "default" for name in values)
        lines += [f"# {line}" if idle and line and line[0] != "#" else line for line in table]
    return "\n".join(lines) + "\n"


def _fields(holder: Any) -> dict[str, Any]:
    if isinstance(holder, Mapping):
        return dict(holder)
    return {field.name: getattr(holder, field.name) for field in dataclasses.fields(holder)}


def _table(title: str, values: Mapping[str, Any], prefix: str, provenance: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield f"[{title}]"
    for name, value in values.items():
        source = provenance.get(prefix + name, "default")
        if value is None:
            yield f"# {name}: not given"
        else:
            yield f"{name} = {_value(value)}  # {_comment(source)}"


def _comment(text: str) -> str:
    return re.sub(r"[\x00-\x08\x0a-\x1f\x7f]", "?", text)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if _has_null(value):
        return _value(json.dumps(value))  # a table with null: JSON text, which reads back as a table
    return "{ " + ", ".join(f"{_value(str(key))} = {_value(item)}" for key, item in value.items()) + " }"


def _has_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_null(item) for item in value.values())
    return value is None or (isinstance(value, list) and any(_has_null(item) for item in value))


def to_plain(config: Config) -> dict[str, Any]:
    """The configuration as JSON data, for a worker process."""
    plain: dict[str, Any] = {section: _fields(getattr(config, section)) for section in SECTIONS}
    for place in ("vllm", "router", "megatron_extra", "provenance"):
        plain[place] = dict(getattr(config, place))
    plain["plugin_specs"] = list(config.plugin_specs)
    plain["plugins"] = {name: _fields(options) for name, options in config.plugins.items()}
    return json.loads(json.dumps(plain))


def from_plain(plain: Mapping[str, Any], plugin_options: Mapping[str, type] | None = None) -> Config:
    """The configuration that ``to_plain`` took apart.

    Args:
        plain: what ``to_plain`` returned.
        plugin_options: plugin name -> dataclass of its options. Options of a plugin that is not named here stay a
            read-only mapping.

    Raises:
        ConfigError: a name or a value that this version does not know (the other process runs another version).
    """
    kinds: dict[str, Any] = {**SECTIONS}
    unknown = set(plain) - set(kinds) - {"vllm", "router", "megatron_extra", "provenance", "plugin_specs", "plugins"}
    if unknown:
        raise ConfigError(f"configuration from another process: unknown parts {sorted(unknown)}; do versions differ?")
    parts: dict[str, Any] = {name: _build(kind, plain.get(name, {}), name) for name, kind in kinds.items()}
    plugins = {}
    for name, values in plain.get("plugins", {}).items():
        kind = (plugin_options or {}).get(name)
        plugins[name] = _build(kind, values, f"plugins.{name}") if kind else FrozenDict(values)
    parts |= {place: FrozenDict(plain.get(place, {})) for place in ("vllm", "router", "megatron_extra", "provenance")}
    return Config(**parts, plugin_specs=tuple(plain.get("plugin_specs", ())), plugins=FrozenDict(plugins))


def _build(kind: type, values: Mapping[str, Any], place: str) -> Any:
    keys = {key.field: key for key in dataclass_keys(kind, place, "")}
    unknown = sorted(set(values) - set(keys))
    if unknown:
        raise ConfigError(f"configuration from another process: [{place}] has unknown {unknown}; do versions differ?")
    try:
        given = {n: v if v is None else from_value(keys[n].annotation, v) for n, v in values.items()}
    except ValueError as error:
        raise ConfigError(f"configuration from another process: [{place}]: {error}") from error
    return kind(**given)
