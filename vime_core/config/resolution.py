"""From an argument list, an environment and a recipe to frozen configurations, one for each stage.

Layers, later wins: defaults, recipe, its stage, environment, flags. Everything is merged first; whether the values make
sense together is for ``vime_core.config.rules``. All that cannot be read is reported together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime_core.api import ConfigError
from vime_core.config import environment, flags, recipe
from vime_core.config.catalogue import Catalogue, Key, Required, as_flag, as_variable
from vime_core.config.flags import Setting
from vime_core.config.frozen import FrozenDict
from vime_core.config.nearest import did_you_mean
from vime_core.config.sections import SECTIONS, Config, ObserveSection

#: name of the stage of a run that has no stages
ONLY_STAGE = "main"
#: switches that say how plugins are loaded
EARLY = ("strict_plugins", "trace_hooks")


@dataclass(frozen=True)
class Stage:
    """A part of the run with its own configuration."""

    name: str
    config: Config


@dataclass(frozen=True)
class ResolvedRun:
    """The stages in order, and the recipe's path if there was one."""

    stages: tuple[Stage, ...]
    recipe: str | None


@dataclass(frozen=True)
class RunArguments:
    """What a run is asked for, before any name in it is known: the argument list split, the recipe file parsed."""

    line: flags.CommandLine
    recipe: recipe.Recipe
    environ: Mapping[str, str]

    @classmethod
    def read(cls, argv: Sequence[str], environ: Mapping[str, str]) -> RunArguments:
        """argv: what follows ``vime train``: an optional recipe, then flags. Raises ConfigError."""
        line = flags.split(argv)
        return cls(line, recipe.load(line.recipe), environ)

    @property
    def plugin_specs(self) -> tuple[str, ...]:
        """Plugin specs of the recipe, the environment and ``--plugin``, in this order."""
        return (*self.recipe.plugins, *environment.plugin_specs(self.environ), *self.line.plugins)

    def before_plugins(self) -> ObserveSection:
        """The switches of ``[observe]`` (``EARLY``) that are needed before plugins are loaded and their flags known."""
        written = {as_flag(prefix + name) for name in EARLY for prefix in ("", "no_")}
        line = flags.CommandLine(None, [], [flag for flag in self.line.flags if flag[0] in written])
        observe = self.recipe.base.get("observe")
        tables = (self.recipe.base, observe if isinstance(observe, dict) else {})
        base = {name: table[name] for table in tables for name in EARLY if name in table}
        variables = {name: value for name, value in self.environ.items() if name in map(as_variable, EARLY)}
        early = dataclasses.replace(self, line=line, recipe=recipe.Recipe(base=base), environ=variables)
        return early.resolve().stages[0].config.observe

    def resolve(self, plugin_options: Mapping[str, type] | None = None) -> ResolvedRun:
        """Merge all layers.

        Args:
            plugin_options: plugin name -> frozen dataclass of its options.

        Raises:
            ConfigError: every unknown name and every value that does not fit, together.
        """
        problems: list[str] = []
        catalogue = Catalogue(plugin_options)
        settings = recipe.read_recipe(self.recipe, catalogue, problems)
        settings += environment.read_environment(self.environ, catalogue, problems)
        settings += flags.read_flags(self.line, catalogue, problems)
        names = [name for name, _ in self.recipe.stages] or [ONLY_STAGE]
        problems += _unknown_stages(settings, names)
        stages = []
        for name in names:
            mine = sorted((s for s in settings if s.stage in (None, name)), key=_rank)
            config = _build(mine, self.plugin_specs, catalogue, problems)
            if config:
                stages.append(Stage(name, config))
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))
        return ResolvedRun(tuple(stages), self.line.recipe)


def resolve(
    argv: Sequence[str], environ: Mapping[str, str], plugin_options: Mapping[str, type] | None = None
) -> ResolvedRun:
    """Read and resolve in one go, where the plugins are known already."""
    return RunArguments.read(argv, environ).resolve(plugin_options)


_LAYERS = ("recipe", "environment", "flag")


def _rank(setting: Setting) -> tuple[int, bool]:
    return _LAYERS.index(setting.source.partition(" ")[0]), setting.stage is not None


def _unknown_stages(settings: Iterable[Setting], names: Sequence[str]) -> list[str]:
    return [
        f"{s.source}: there is no stage {s.stage!r} (stages: {', '.join(names)}){did_you_mean(s.stage, names)}"
        for s in settings
        if s.stage is not None and s.stage not in names
    ]


def _build(
    settings: Sequence[Setting], specs: tuple[str, ...], catalogue: Catalogue, problems: list[str]
) -> Config | None:
    values: dict[str, dict[str, Any]] = {place: {} for place in (*SECTIONS, "vllm", "router", "megatron_extra")}
    provenance = {key.name: "default" for key in catalogue.all()}
    for setting in settings:
        values.setdefault(setting.key.place, {})[setting.key.field] = setting.value
        provenance[setting.key.name] = setting.source
    plugins = {}
    for plugin, kind in catalogue.plugin_options.items():
        given = values.get(f"plugins.{plugin}", {})
        missing = _missing(catalogue, plugin, given)
        problems += [f"{key.flag} is required by plugin {plugin}" for key in missing]
        if missing:
            return None
        plugins[plugin] = kind(**given)
    return Config(
        **{section: kind(**values[section]) for section, kind in SECTIONS.items()},
        vllm=FrozenDict(values["vllm"]),
        router=FrozenDict(values["router"]),
        megatron_extra=FrozenDict(values["megatron_extra"]),
        plugin_specs=specs,
        plugins=FrozenDict(plugins),
        provenance=FrozenDict(provenance),
    )


def _missing(catalogue: Catalogue, plugin: str, given: Mapping[str, Any]) -> list[Key]:
    mine = [key for key in catalogue.plugins.values() if key.place == f"plugins.{plugin}"]
    return [key for key in mine if key.default is Required and key.field not in given]
