"""From ``--plugin`` to a list of plugins in order: what to load, from where, and who asked for it.

The order is the same on every machine: the core, then installed plugins by name, then requested ones as they were
given; the hooks of the last are asked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vime_core.api import PluginError
from vime_core.plugin.discovery import CORE_DIST, Candidate, canonical, core_version
from vime_core.plugin.messages import listed, nearest
from vime_core.plugin.registry import CORE, Owner
from vime_core.plugin.targets import absolute_target, split_target

OMIT = "no:"
#: seconds that the import of a plugin may take: of one that was asked for, and of one that merely is installed
ASKED_SECS, INSTALLED_SECS = 300.0, 20.0


@dataclass(frozen=True)
class LoadPlan:
    """A plugin to load.

    Attributes:
        spec: what any process can import: ``pkg.mod[:obj]`` or an absolute file.
        requested: the user asked for it.
        problem: a reason, known from metadata, not to import it at all.
        needed: nothing runs without it, whoever asked: the core, and whatever the driver has loaded.
    """

    owner: Owner
    spec: str
    requested: bool = False
    problem: str = ""
    needed: bool = False

    @property
    def seconds(self) -> float:
        """The deadline of its import."""
        return ASKED_SECS if self.requested or self.needed else INSTALLED_SECS

    def called(self, name: str) -> bool:
        """Does ``no:name`` mean this plugin?"""
        mine = (self.owner.name, self.owner.dist or "", self.spec)
        return canonical(absolute_target(name)) in {canonical(part) for part in mine}


def core_plan() -> LoadPlan:
    return LoadPlan(Owner(CORE, CORE_DIST, core_version()), "vime_core.builtin", needed=True)


def split_specs(specs: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(requested, left out) of VIME_PLUGINS and ``specs``, in the order given.

    Raises:
        PluginError: a spec is empty, or leaves out the core.
    """
    given = [spec.strip() for spec in environ.get("VIME_PLUGINS", "").split(",") if spec.strip()]
    given += [spec.strip() for spec in specs]
    omitted = [spec.removeprefix(OMIT) for spec in given if spec.startswith(OMIT)]
    if "" in given or "" in omitted:
        raise PluginError("a plugin is asked for by an empty name; use --plugin NAME, pkg.mod, ./file.py or no:NAME")
    if CORE in omitted:
        raise PluginError("the core cannot be left out; its providers are named core/NAME")
    return [spec for spec in given if not spec.startswith(OMIT)], omitted


def autoload_disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("VIME_DISABLE_PLUGIN_AUTOLOAD", "") not in ("", "0")


def make_plans(
    requested: Sequence[str], omitted: Sequence[str], candidates: Sequence[Candidate], autoload: bool
) -> list[LoadPlan]:
    """Plugins to load besides the core, in order.

    Raises:
        PluginError: nothing installed has the requested name.
    """
    asked = _last_of_each(plan for spec in requested for plan in _request(spec, candidates))
    taken = {canonical(plan.owner.name) for plan in asked if plan.owner.dist}
    automatic = [_of(candidate) for candidate in candidates if autoload and canonical(candidate.name) not in taken]
    return [plan for plan in [*automatic, *asked] if not any(plan.called(name) for name in omitted)]


def _request(spec: str, candidates: Sequence[Candidate]) -> list[LoadPlan]:
    place, attribute = split_target(spec)
    if place.endswith(".py"):
        name = f"{Path(place).stem}.{attribute}" if attribute else Path(place).stem
        return [LoadPlan(Owner(name), absolute_target(spec), requested=True)]
    if "." in spec or ":" in spec:
        return [_module(spec, candidates)]
    return _named(spec, candidates)


def _module(spec: str, candidates: Sequence[Candidate]) -> LoadPlan:
    """A module; where an installed plugin is that module, it is that plugin, with its name and version."""
    for candidate in candidates:
        if candidate.value == spec:
            return _of(candidate, requested=True)
    return LoadPlan(Owner(spec.removesuffix(".plugin").replace(":", ".")), spec, requested=True)


def _named(name: str, candidates: Sequence[Candidate]) -> list[LoadPlan]:
    if canonical(name) == CORE:
        return []
    wanted = canonical(name)
    by_name = [c for c in candidates if canonical(c.name) == wanted]
    if by_name:
        return [_of(by_name[0], requested=True)]
    by_dist = [c for c in candidates if canonical(c.owner.dist or "") == wanted]
    if by_dist:  # a distribution's name says which of two claimants is meant
        return [_of(c, requested=True, settled=c.status == "conflict") for c in by_dist]
    names = [c.name for c in candidates]
    raise PluginError(
        f"no plugin named '{name}'{nearest(name, names)}; installed: {listed(dict.fromkeys(names))}; "
        f"a module is named pkg.mod, a file ./{name}.py"
    )


def _of(candidate: Candidate, requested: bool = False, settled: bool = False) -> LoadPlan:
    problem = "" if settled else candidate.problem
    if problem and candidate.status == "conflict":
        problem += f"; uninstall one of them, or name the distribution: --plugin {candidate.owner.dist}"
    return LoadPlan(candidate.owner, candidate.value, requested, problem)


def _last_of_each(plans: Iterable[LoadPlan]) -> list[LoadPlan]:
    """A plugin asked for twice (by VIME_PLUGINS and by a flag) counts where it was asked for last."""
    latest: dict[tuple[str, str], LoadPlan] = {}
    for plan in plans:
        key = (canonical(plan.owner.name), plan.spec)
        latest.pop(key, None)
        latest[key] = plan
    return list(latest.values())
