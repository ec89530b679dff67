"""``vime train --help``: the flags in groups, as plain text, from the same definitions that parse them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_origin

from vime_core.api import ConfigError
from vime_core.config.catalogue import Catalogue, Key, Required, as_flag
from vime_core.config.coerce import arity, describe, members
from vime_core.config.passthrough import MEGATRON, ROUTER, VLLM, Family
from vime_core.config.sections import SECTIONS
from vime_core.config.source import NotWritable

USAGE = "vime train [RECIPE] [--plugin SPEC ...] [--flag value ...]"
INTRODUCTION = """\
Train a model. RECIPE is a TOML file; every flag below is also a key in it, at the top or in its section's table, and an
environment variable VIME_<FLAG>. Later layers win: defaults, recipe, environment, flags."""
GENERAL = (
    ("--plugin SPEC", "load a plugin: a name, a distribution, pkg.mod[:obj], ./file.py, or no:NAME to leave one out"),
    ("--show-config", "print the resolved configuration with the source of every value, and stop"),
    ("--stage.NAME.FLAG", "set a flag for one stage of a recipe only"),
    ("--help [TOPIC]", "this text; TOPIC vllm, router or megatron lists what passes through here"),
)
#: topic of ``--help`` -> what it lists
TOPICS: Mapping[str, Family] = {"vllm": VLLM, "router": ROUTER, "megatron": MEGATRON}
_WIDTH, _COLUMN = 110, 44


def help_text(plugin_options: Mapping[str, type] | None = None, topic: str | None = None) -> str:
    """The whole text, or the pass-through options of the installed version for a topic.

    Raises:
        ConfigError: there is no such topic, or what it lists is not installed.
    """
    if topic is not None:
        return _topic(topic)
    catalogue = Catalogue(plugin_options)
    parts = [f"Usage: {USAGE}", "", INTRODUCTION, "", "General:", *_rows(GENERAL)]
    for title, text, keys in groups(catalogue):
        parts += ["", f"{title}:", *textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")]
        parts += _rows([(usage(key), explain(key)) for key in keys])
    return "\n".join(parts) + "\n"


def groups(catalogue: Catalogue) -> Iterator[tuple[str, str, list[Key]]]:
    """(title, what it is, its keys), in the order in which they are shown."""
    for section, kind in SECTIONS.items():
        about = " ".join((kind.__doc__ or "").split())
        keys = [key for key in catalogue.core.values() if key.place == section]
        yield f"[{section}]", about, keys
        if section == "engine":
            yield from _pass_through()
    for plugin in catalogue.plugin_options:
        keys = [key for key in catalogue.plugins.values() if key.place == f"plugins.{plugin}"]
        yield f"[plugins.{plugin}]", f"Options of plugin {plugin}.", keys


def _pass_through() -> Iterator[tuple[str, str, list[Key]]]:
    for family, what in ((VLLM, "vLLM's engine and server options"), (ROUTER, "vllm-router's options")):
        flag = as_flag(family.prefix) + "NAME"
        about = f"{what} as {flag}, checked against the installed version. `--help {family.place}` lists them."
        yield f"[{family.place}]", about, []


def usage(key: Key) -> str:
    """``--lr FLOAT``, ``--[no-]colocate``."""
    kind = arity(key.annotation)
    if kind == "none":
        return f"--[no-]{key.name.replace('_', '-')}"
    shown = describe(key.annotation)
    if kind == "many":
        element = shown.removeprefix("list of ").upper()
        return f"{key.flag} {element} [{element} ...]"
    choices = any(get_origin(member) is Literal for member in members(key.annotation))
    return f"{key.flag} {shown if choices else shown.upper().replace(' OR ', '|')}"


def explain(key: Key) -> str:
    """The help text with the default."""
    default = "" if _says_default(key) else f" (default: {show(key.default)})"
    aliases = ", ".join(as_flag(alias) for alias in key.metadata.get("aliases", ()))
    return key.metadata.get("help", "") + default + (f" [also {aliases}]" if aliases else "")


def _says_default(key: Key) -> bool:
    return key.default is Required or key.default is None or key.default is False or key.default in ([], {})


def show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _rows(rows: Any) -> Iterator[str]:
    for left, right in rows:
        wrapped = textwrap.wrap(right, _WIDTH - _COLUMN) or [""]
        if len(left) > _COLUMN - 4:
            yield f"  {left}"
        else:
            yield f"  {left:<{_COLUMN - 2}}{wrapped.pop(0)}".rstrip()
        yield from (" " * _COLUMN + line for line in wrapped if line)


def _topic(topic: str) -> str:
    if topic not in TOPICS:
        raise ConfigError(f"no help on {topic!r}; there is help on {', '.join(TOPICS)}")
    family, catalogue = TOPICS[topic], Catalogue()
    options = catalogue.family(family)
    if options is None:
        raise ConfigError(f"{family.package} is not installed here: install {family.project} to see its options")
    keys = [
        Key(family.prefix + name, family.place, name, annotation)
        for name, annotation in sorted(options.items())
        if name not in family.owned and annotation is not NotWritable and family.prefix + name not in catalogue.core
    ]
    owned = [(as_flag(family.prefix + name), instead) for name, instead in family.owned.items()]
    lines = [f"{family.project}: options of the installed version", *(f"  {usage(key)}" for key in keys)]
    return "\n".join([*lines, "", "Decided by vime:", *_rows(owned)]) + "\n"
