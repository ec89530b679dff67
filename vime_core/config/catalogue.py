"""Every name that a run understands: the sections' fields, plugin options, and what passes through.

A ``Key`` is one option however it is written: flag ``--vllm-max-model-len``, variable ``VIME_VLLM_MAX_MODEL_LEN``,
recipe key ``max_model_len`` in ``[vllm]``. Pass-through definitions are read the first time such a name is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from vime_core.api import ConfigError
from vime_core.config.nearest import did_you_mean
from vime_core.config.passthrough import FAMILIES, MEGATRON, Family, read_family
from vime_core.config.sections import SECTIONS
from vime_core.config.source import NotWritable

#: names that a plugin may not have, because flags or recipe tables of that name mean something else
RESERVED = frozenset({*SECTIONS, *(family.prefix.rstrip("_") for family in FAMILIES), "stage", "plugin", "plugins"})


class Required:
    """In place of a default that does not exist."""


@dataclass(frozen=True)
class Key:
    """One option.

    Args:
        name: unique over everything, underscores (``vllm_max_model_len``).
        place: section name, "vllm", "router", "megatron_extra" or "plugins.NAME".
        field: name inside the place.
        annotation: its type.
        default: shown in help; ``Required`` where there is none.
        metadata: of the dataclass field: help, aliases, algorithm.
    """

    name: str
    place: str
    field: str
    annotation: Any
    default: Any = Required
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def flag(self) -> str:
        return as_flag(self.name)


def as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def as_variable(name: str) -> str:
    return "VIME_" + name.upper()


def as_key(name: str) -> str:
    return name


def plain(name: str) -> str:
    """A name as recipes and flags may write it, with underscores."""
    return name.replace("-", "_")


class UnknownName(ConfigError):
    """A name that is neither ours, a plugin's, nor upstream's."""


class Catalogue:
    """Look-up of keys.

    Args:
        plugin_options: plugin name -> frozen dataclass of its options.
    """

    def __init__(self, plugin_options: Mapping[str, type] | None = None) -> None:
        self.plugin_options = dict(plugin_options or {})
        self.core: dict[str, Key] = {}
        self.plugins: dict[str, Key] = {}
        self._aliases: dict[str, Key] = {}
        self._families: dict[str, dict[str, Any] | None] = {}
        for section, kind in SECTIONS.items():
            for key in dataclass_keys(kind, section, ""):
                self.core[key.name] = key
                self._aliases |= {alias: key for alias in key.metadata.get("aliases", ())}
        for plugin, kind in self.plugin_options.items():
            self._add_plugin(plugin, kind)

    def _add_plugin(self, plugin: str, kind: type) -> None:
        if plain(plugin) in RESERVED:
            raise ConfigError(f"a plugin with options may not be called {plugin!r}: the name is taken by vime")
        frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
        if not (isinstance(kind, type) and frozen):
            raise ConfigError(f"options of plugin {plugin!r} must be a frozen dataclass, not {kind!r}")
        for key in dataclass_keys(kind, f"plugins.{plugin}", plain(plugin) + "_"):
            if key.name in self.core or key.name in self._aliases or key.name in self.plugins:
                raise ConfigError(
                    f"option {key.field!r} of plugin {plugin!r} would be {key.flag}, which exists already"
                )
            self.plugins[key.name] = key

    def find(self, name: str, spell: Callable[[str], str] = as_flag) -> Key:
        """The key of a full name. Raises ConfigError (UnknownName) as ``spell`` writes names."""
        name = plain(name)
        known = self.core.get(name) or self._aliases.get(name) or self.plugins.get(name)
        if known:
            return known
        family = next((f for f in FAMILIES if f.prefix and name.startswith(f.prefix)), MEGATRON)
        return self._pass(family, name[len(family.prefix) :], spell)

    def find_in(self, place: str, field: str) -> Key:
        """The key of a field in a recipe's table. ``place``: section, "vllm", "router" or "plugins.NAME"."""
        field = plain(field)
        if place.startswith("plugins."):
            return self._plugin_key(place.removeprefix("plugins."), field)
        family = next((f for f in FAMILIES if f.prefix and f.place == place), None)
        if family:
            own = self.core.get(family.prefix + field)
            return own or self._pass(family, field, as_key, table=True)
        key = self.core.get(field) or self._aliases.get(field)
        if key and key.place == place:
            return key
        if key:
            raise ConfigError(f"{field} belongs to [{key.place}], not to [{place}]")
        if place == "megatron":
            return self._pass(MEGATRON, field, as_key, table=True)
        raise UnknownName(f"unknown key {field}{did_you_mean(field, self.core)}")

    def _plugin_key(self, plugin: str, field: str) -> Key:
        if plain(plugin) not in map(plain, self.plugin_options):
            known = ", ".join(sorted(self.plugin_options)) or "none"
            raise UnknownName(f"no loaded plugin {plugin!r} has options (loaded with options: {known})")
        fields = {k.field: k for k in self.plugins.values() if plain(k.place) == f"plugins.{plain(plugin)}"}
        if field not in fields:
            raise UnknownName(f"unknown key {field}{did_you_mean(field, fields)}")
        return fields[field]

    def _pass(self, family: Family, field: str, spell: Callable[[str], str], table: bool = False) -> Key:
        """``table``: the name stands in the family's own table, where names carry no prefix."""
        options = self.family(family)
        shown = spell(field if table else family.prefix + field)
        if field in family.owned:
            raise ConfigError(f"{shown} is vime's to decide: {family.owned[field]}")
        if options and field in options:
            if options[field] is NotWritable:
                raise ConfigError(f"{shown} holds a function or a dtype, which neither a flag nor a recipe can spell")
            return Key(family.prefix + field, family.place, field, options[field])
        if options is None and family.prefix:
            raise ConfigError(
                f"{as_flag(family.prefix)}* options cannot be checked, because {family.package} is not installed here: "
                f"install {family.project}, or leave them out"
            )
        upstream = "" if options is not None else f" ({family.project} is not installed: its other fields are unknown)"
        what = "flag" if spell is as_flag else "variable" if spell is as_variable else "key"
        known = [spell(name) for name in self._candidates(family, table)]
        raise UnknownName(f"unknown {what} {shown}{upstream}{did_you_mean(shown, known)}")

    def _candidates(self, family: Family, table: bool) -> Iterator[str]:
        prefix = "" if table else family.prefix
        if not table or not family.prefix:
            yield from (*self.core, *self._aliases, *self.plugins)
        yield from (prefix + name for name in self.family(family) or {} if name not in family.owned)

    def family(self, family: Family) -> dict[str, Any] | None:
        """Options of a family, read once for each catalogue."""
        if family.place not in self._families:
            self._families[family.place] = read_family(family)
        return self._families[family.place]

    def all(self) -> Iterator[Key]:
        """The keys with defaults: sections first, then plugins."""
        yield from self.core.values()
        yield from self.plugins.values()


def dataclass_keys(kind: type, place: str, prefix: str) -> Iterator[Key]:
    """The keys of a dataclass's fields, in order."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        default = Required if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield Key(prefix + field.name, place, field.name, hints[field.name], default, field.metadata)
