"""Taking one plugin in: import it, look at its hooks, and say in words what is wrong with them.

pluggy itself accepts much that would then silently do nothing: a misspelt hook, a function without the marker, an
``async def`` that is never awaited. Here each is an error with the fix in it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pluggy

from vime_core import API_VERSION
from vime_core.api import PluginError
from vime_core.plugin.loading import LoadPlan
from vime_core.plugin.messages import BLAMABLE, nearest, one_line, remedy
from vime_core.plugin.registry import Owner
from vime_core.plugin.targets import load_target

PREFIX = "vime_"


@dataclass(frozen=True)
class LoadedPlugin:
    """A loaded plugin."""

    owner: Owner
    spec: str
    requested: bool
    plugin: object

    @property
    def name(self) -> str:
        return self.owner.name


def validate(plan: LoadPlan, manager: pluggy.PluginManager) -> LoadedPlugin:
    """Import a plugin and register its hooks with ``manager``.

    Raises:
        PluginError: what is wrong, without the plugin's name. Nothing of the plugin stays registered.
    """
    if plan.problem:
        raise PluginError(plan.problem)
    plugin = _import(plan)
    if manager.get_name(plugin) is not None:
        raise PluginError(f"{plan.spec} is loaded already, as plugin '{manager.get_name(plugin)}'")
    if manager.has_plugin(plan.owner.name):
        raise PluginError(f"another plugin has the name '{plan.owner.name}'; rename one of them")
    try:
        manager.register(plugin, plan.owner.name)
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{one_line(error)}{_takes(plugin, manager)}") from error
    wrong = _wrong_hooks(plugin, manager)
    if wrong:
        manager.unregister(plugin)
        raise PluginError(f"{plan.spec}: {wrong}")
    return LoadedPlugin(plan.owner, plan.spec, plan.requested, plugin)


def hooks_of(plugin: object, manager: pluggy.PluginManager) -> list[str]:
    """Names of the hooks that a plugin implements."""
    return sorted(caller.name for caller in manager.get_hookcallers(plugin) or ())


def _import(plan: LoadPlan) -> object:
    spec = plan.spec
    try:
        plugin = load_target(spec)
        plugin = plugin() if isinstance(plugin, type) else plugin
    except PluginError as error:  # there is no such module or attribute
        raise PluginError(f"import of {spec}: {_without_module(plan, error)}") from error
    except BLAMABLE as error:
        raise PluginError(f"import of {spec}: {one_line(error)}{remedy(error)}") from error
    api = getattr(plugin, "VIME_API", API_VERSION)
    if api != API_VERSION:
        raise PluginError(f"{spec}: is written for plugin API {api}, this vime-core has {API_VERSION}")
    return plugin


def _without_module(plan: LoadPlan, error: PluginError) -> str:
    """Of an installed plugin it is the entry point that leads nowhere: to a file that the package lacks, or that moved
    since it was installed."""
    dist = plan.owner.dist
    if dist is None:
        return str(error)
    what = str(error).partition("; ")[0]
    return (
        f"{what}; the entry point '{plan.owner.name}' of {dist} names it: install {dist} again, or correct "
        f'[project.entry-points."vime.plugins"] in its pyproject.toml'
    )


def _wrong_hooks(plugin: object, manager: pluggy.PluginManager) -> str:
    for caller in manager.get_hookcallers(plugin) or ():
        implementation = next(i for i in caller.get_hookimpls() if i.plugin is plugin)
        if not caller.has_spec() and implementation.optionalhook:
            continue  # written for several versions of vime-core, and says so
        if not caller.has_spec():
            return f"there is no hook '{caller.name}'{nearest(caller.name, _specified(manager))}"
        if inspect.iscoroutinefunction(implementation.function):
            return f"hook '{caller.name}' is async; hooks are plain functions"
        if implementation.hookwrapper or implementation.wrapper:
            return f"hook '{caller.name}' is a wrapper; hooks are called one plugin at a time and cannot be wrapped"
    unmarked = _unmarked(plugin)
    return f"'{unmarked}' looks like a hook but is not marked with @hookimpl" if unmarked else ""


def _takes(plugin: object, manager: pluggy.PluginManager) -> str:
    """Arguments that the hooks of a plugin may take, of those that take another."""
    found = []
    for name in _specified(manager):
        function, spec = getattr(plugin, name, None), getattr(manager.hook, name).spec
        if callable(function) and set(inspect.signature(function).parameters) - {"self", *spec.argnames}:
            found.append(f"; {name} may take {', '.join(spec.argnames)}")
    return "".join(found)


def _specified(manager: pluggy.PluginManager) -> list[str]:
    return [
        name
        for name, caller in vars(manager.hook).items()
        if isinstance(caller, pluggy.HookCaller) and caller.has_spec()
    ]


def _unmarked(plugin: object) -> str:
    functions: dict[str, Any] = dict(inspect.getmembers(plugin, inspect.isroutine))
    marked = "vime_impl"  # the attribute that pluggy's HookimplMarker("vime") leaves
    return next((n for n, f in functions.items() if n.startswith(PREFIX) and not hasattr(f, marked)), "")
