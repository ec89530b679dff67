"""From an argument list, an environment and a recipe to frozen configurations, one for each stage.

Layers, later wins: defaults, recipe, its stage, what plugins propose, environment, flags. Everything is merged first;
whether the values make sense together is for ``vime_core.config.rules``. All that cannot be read is reported together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime_core.api import ConfigError
from vime_core.config import environment, flags, recipe
from vime_core.config.catalogue import Catalogue, Key, Required, as_flag, as_key, as_variable
from vime_core.config.coerce import from_value
from vime_core.config.flags import Setting
from vime_core.config.frozen import FrozenDict
from vime_core.config.nearest import did_you_mean
from vime_core.config.sections import SECTIONS, Config

#: name of the stage of a run that has no stages
ONLY_STAGE = "main"


@dataclass(frozen=True)
class Stage:
    """A part of the run with its own configuration."""

    name: str
    config: Config


@dataclass(frozen=True)
class Plan:
    """The stages in order, and the recipe's path if there was one."""

    stages: tuple[Stage, ...]
    recipe: str | None


def scan_plugins(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Plugin specs of the recipe, the environment and ``--plugin``, in this order. Looks at nothing else."""
    line = flags.split(argv)
    return [*recipe.load(line.recipe).plugins, *environment.plugin_specs(environ), *line.plugins]


def scan_strict(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether ``strict_plugins`` is set anywhere; needed before plugins are loaded and their flags known."""
    return _scan(argv, environ, "strict_plugins")


def scan_trace(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether ``trace_hooks`` is set anywhere; the first hooks are called before the rest is known."""
    return _scan(argv, environ, "trace_hooks")


def _scan(argv: Sequence[str], environ: Mapping[str, str], name: str) -> bool:
    line = flags.split(argv)
    wanted = [flag for flag in line.flags if flag[0] in (as_flag(name), as_flag("no_" + name))]
    base = recipe.load(line.recipe).base
    observe = base.get("observe", {})
    values = [table[name] for table in (base, observe) if isinstance(table, dict) and name in table]
    written = recipe.Recipe(base={name: values[-1]} if values else {})
    variable = {key: value for key, value in environ.items() if key == as_variable(name)}
    plan = _merge(flags.CommandLine(None, [], wanted), written, variable, Catalogue(), {})
    return bool(getattr(plan.stages[0].config.observe, name))


def resolve(
    argv: Sequence[str],
    environ: Mapping[str, str],
    plugin_options: Mapping[str, type] | None = None,
    plugin_defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Merge all layers.

    Args:
        argv: what follows ``vime train``: an optional recipe, then flags.
        environ: the variables to look at.
        plugin_options: plugin name -> frozen dataclass of its options.
        plugin_defaults: plugin name -> {full option name: value} that it proposes for other options.

    Raises:
        ConfigError: every unknown name and every value that does not fit, together.
    """
    line = flags.split(argv)
    return _merge(line, recipe.load(line.recipe), environ, Catalogue(plugin_options), plugin_defaults or {})


def _merge(
    line: flags.CommandLine,
    written: recipe.Recipe,
    environ: Mapping[str, str],
    catalogue: Catalogue,
    proposed: Mapping[str, Mapping[str, Any]],
) -> Plan:
    problems: list[str] = []
    settings = recipe.read_recipe(written, catalogue, problems)
    settings += _proposed(proposed, catalogue, problems)
    settings += environment.read_environment(environ, catalogue, problems)
    settings += flags.read_flags(line, catalogue, problems)
    names = [name for name, _ in written.stages] or [ONLY_STAGE]
    problems += _unknown_stages(settings, names)
    specs = (*written.plugins, *environment.plugin_specs(environ), *line.plugins)
    stages = []
    for name in names:
        mine = sorted((s for s in settings if s.stage in (None, name)), key=_rank)
        config = _build(mine, specs, catalogue, problems)
        if config:
            stages.append(Stage(name, config))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return Plan(tuple(stages), line.recipe)


_LAYERS = ("recipe", "plugin", "environment", "flag")


def _rank(setting: Setting) -> tuple[int, bool]:
    return _LAYERS.index(setting.source.partition(" ")[0]), setting.stage is not None


def _proposed(
    defaults: Mapping[str, Mapping[str, Any]], catalogue: Catalogue, problems: list[str]
) -> Iterable[Setting]:
    for plugin, values in defaults.items():
        for name, value in values.items():
            try:
                key = catalogue.find(name, as_key)
                yield Setting(key, from_value(key.annotation, value), f"plugin {plugin}")
            except ValueError as error:
                problems.append(f"plugin {plugin}: {name}: {error}")
            except ConfigError as error:
                problems += [f"plugin {plugin}: {violation}" for violation in error.violations]


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
