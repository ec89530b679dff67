"""The command line as settings. No abbreviations; the recipe, if any, comes first, or where no flag could mean it.

``--lr 1e-5``, ``--lr=1e-5``; ``--colocate``, ``--no-colocate``; ``--prompt-data a.jsonl b.jsonl`` (repeatable: values
add up); ``--stage.NAME.lr 1e-5`` for one stage of a recipe. A repeated single value: the last one holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vime_core.api import ConfigError
from vime_core.config.catalogue import Catalogue, Key, UnknownName, as_flag
from vime_core.config.coerce import arity, from_word, from_words


@dataclass(frozen=True)
class Setting:
    """One value from one place. ``stage`` is set where it is for that stage only."""

    key: Key
    value: Any
    source: str
    stage: str | None = None


@dataclass(frozen=True)
class CommandLine:
    """The argument list in its parts: recipe path, plugin specs, and the flags with their values."""

    recipe: str | None
    plugins: list[str]
    flags: list[tuple[str, list[str], bool]]  # name as written, values, whether it was --name=value


def split(argv: Sequence[str]) -> CommandLine:
    """Split an argument list. Needs no knowledge of any flag but ``--plugin``."""
    recipe: str | None = None
    plugins: list[str] = []
    flags: list[tuple[str, list[str], bool]] = []
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            flags.append((name, [value] if equals else [], bool(equals)))
        elif flags and _waits(*flags[-1]):
            flags[-1][1].append(word)
        elif recipe is None and not word.startswith("-"):
            recipe = word
        elif not flags or flags[-1][2]:
            raise ConfigError(f"unexpected {word!r}: the recipe comes first, as in `vime train RECIPE --flag value`")
        else:
            raise ConfigError(f"unexpected {word!r}: --plugin takes one value and may be repeated")
    for name, values, _ in flags:
        if name == "--plugin":
            if len(values) != 1 or not values[0]:
                raise ConfigError(
                    "--plugin takes one value: a name, a distribution, pkg.mod[:obj], a .py file or no:NAME"
                )
            plugins += values
    return CommandLine(recipe, plugins, [flag for flag in flags if flag[0] != "--plugin"])


def _waits(name: str, values: list[str], joined: bool) -> bool:
    """Whether the next word may be a value of this flag."""
    return not joined and not (name == "--plugin" and values)


def read_flags(line: CommandLine, catalogue: Catalogue, problems: list[str]) -> list[Setting]:
    """Settings of the flags in order; what is wrong goes to ``problems``, one line each."""
    lists: dict[tuple[str | None, str], Any] = {}
    settings: list[Setting] = []
    for written, words, joined in line.flags:
        try:
            stage, name = _stage(written)
            key, negated = _key(name, catalogue)
            value = _value(key, negated, words, joined)
        except ValueError as error:
            problems.append(f"flag {written}: {error}")
            continue
        except ConfigError as error:
            problems += error.violations
            continue
        if arity(key.annotation) == "many":
            value = lists[stage, key.name] = lists.get((stage, key.name), []) + value
        settings.append(Setting(key, value, f"flag {written}", stage))
    return settings


def _stage(written: str) -> tuple[str | None, str]:
    name = written[2:]
    if not name.startswith("stage."):
        return None, name
    parts = name.split(".", 2)
    if len(parts) != 3 or not all(parts):
        raise ValueError("a flag for one stage is written --stage.NAME.FLAG")
    return parts[1], parts[2]


def _key(name: str, catalogue: Catalogue) -> tuple[Key, bool]:
    """The key, and whether the flag switches it off (``--no-x``, for vLLM also ``--vllm-no-x``)."""
    if "_" in name:
        raise ConfigError(f"unknown flag --{name}; flags are written with dashes: {as_flag(name)}")
    try:
        return catalogue.find(name), False
    except UnknownName as unknown:
        for positive in (name.removeprefix("no-"), name.replace("vllm-no-", "vllm-", 1)):
            if positive != name:
                try:
                    key = catalogue.find(positive)
                except ConfigError:
                    continue
                if arity(key.annotation) == "none":
                    return key, True
        raise unknown


def _value(key: Key, negated: bool, words: list[str], joined: bool) -> Any:
    if arity(key.annotation) != "none":
        return from_words(key.annotation, words)
    if not words:
        return not negated
    if negated or not joined:
        raise ValueError(
            f"takes no value, got {words[0]!r} (write {key.flag}, {as_flag('no_' + key.name)} or =true/=false)"
        )
    return from_word(key.annotation, words[0])
