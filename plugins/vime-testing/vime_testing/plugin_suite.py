"""What every plugin must hold, whatever it adds: it loads light, its names lead somewhere, it fits this vime-core."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from vime_core.api import PluginError
from vime_core.runtime import run_python
from vime_testing.suite import Suite, must, skip

if TYPE_CHECKING:
    from vime_core.plugin import LoadedPlugin, Provider

#: seconds for a fresh interpreter to load one plugin
_DEADLINE = 120.0


class PluginSuite(Suite):
    """Set ``plugin``: the name of an installed one, ``pkg.mod`` or ``./file.py``.

    That hooks exist, are marked, plain and take known arguments, and that options are a frozen dataclass with help, is
    checked whenever a plugin is loaded; here such an error is a failed ``test_it_loads``.
    """

    # the tests -----------------------------------------------------------------------------------------------
    def test_it_loads(self) -> None:
        self._member()

    def test_loading_it_imports_nothing_heavy(self) -> None:
        heavy = self._fresh["loading"]
        must(
            not heavy,
            f"loading it imported {', '.join(heavy)}; name the target as a string 'pkg.mod:obj' and import inside "
            "functions",
        )

    def test_probes_import_nothing_heavy(self) -> None:
        heavy = self._fresh["probes"]
        must(
            not heavy, f"its probes imported {', '.join(heavy)}; look at device files or run the vendor's tool instead"
        )

    def test_a_second_process_start_changes_nothing(self) -> None:
        raised, changed = self._fresh["raised"], self._fresh["twice"]
        must(not raised, f"vime_process_started raised in a {raised}; it runs in every process of every run")
        must(
            not changed,
            f"a second vime_process_started changed {', '.join(changed[:3])}; it must be idempotent: a process may be "
            "entered twice",
        )

    def test_it_adds_something(self) -> None:
        member = self._member()
        if self.loaded().hooks_of(member) or self._functions(member):
            return
        raise AssertionError("it has no hook; mark a function vime_register_... with @hookimpl")

    def test_every_name_leads_somewhere(self) -> None:
        for provider in self._providers():
            try:
                provider.load()
            except PluginError as error:
                able, reason = provider.available()
                must(
                    not able and reason,
                    f"{error}; mend the target, or give add(..., available='pkg.mod:probe') that says (False, why)",
                )

    def test_every_name_has_a_summary(self) -> None:
        silent = [provider.qualified_name for provider in self._providers() if not provider.summary]
        must(not silent, f"no summary of {', '.join(silent)}; give add(..., summary='one line') for the listings")

    def test_it_says_which_core_it_fits(self) -> None:
        from importlib import metadata

        from packaging.requirements import Requirement

        from vime_core.plugin import CORE_DIST, canonical

        owner = self._member().owner
        if owner.dist is None or canonical(owner.dist) == CORE_DIST:
            skip("not of a distribution of its own")
        needs = [Requirement(text) for text in metadata.requires(owner.dist) or ()]
        ranges = [r.specifier for r in needs if canonical(r.name) == CORE_DIST and not r.marker]
        bounds = {clause.operator for specifier in ranges for clause in specifier}
        closed = bounds & {"==", "~="} or (bounds & {">=", ">"} and bounds & {"<", "<="})
        must(
            closed,
            f"{owner.dist} requires '{CORE_DIST}{ranges[0] if ranges else ''}'; write both bounds, as in "
            f'dependencies = ["{CORE_DIST}>=0.1,<0.2"]',
        )

    # what is looked at ---------------------------------------------------------------------------------------
    def _member(self) -> LoadedPlugin:
        must(self.plugin, f"{type(self).__name__}.plugin is not set: give the plugin's name, pkg.mod or ./file.py")
        members = self.loaded().members
        return members[-1]  # the core itself where the plugin is "core"

    def _providers(self) -> list[Provider[Any]]:
        plugins, name = self.loaded(), self._member().name
        return [p for registry in plugins.registries().values() for p in registry if p.plugin == name]

    def _functions(self, member: LoadedPlugin) -> bool:
        """A file may hold nothing but functions that are used as ``stem:name``."""
        place = getattr(member.plugin, "__name__", "")
        mine = (v for v in vars(member.plugin).values() if getattr(v, "__module__", None) == place)
        return member.owner.dist is None and any(callable(value) for value in mine)

    @property
    def _fresh(self) -> dict[str, Any]:
        must(self.plugin, f"{type(self).__name__}.plugin is not set: give the plugin's name, pkg.mod or ./file.py")
        return _examined(str(self.plugin))


@cache
def _examined(spec: str) -> dict[str, Any]:
    """What :mod:`vime_testing.fresh` finds; once a plugin, since starting an interpreter is most of the cost."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("VIME_")}
    done = run_python(["-m", "vime_testing.fresh", spec], environ, _DEADLINE)
    must(not done.problem, f"in a fresh interpreter: {done.problem}")
    found: dict[str, Any] = done.answer()
    return found
