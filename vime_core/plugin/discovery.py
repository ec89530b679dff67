"""What is installed: the entry points of the group ``vime.plugins``, from metadata alone.

Nothing is imported here, so a plugin that explodes on import is still listed. The reasons not to load a plugin that
metadata can tell are found here too: two distributions claim one name, its requirement on vime-core excludes the
installed core, its name is reserved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import EntryPoint

from vime_core.api import PluginError
from vime_core.plugin.messages import one_line
from vime_core.plugin.registry import CORE, Owner

GROUP = "vime.plugins"
CORE_DIST = "vime-core"
#: names that are prefixes of flags or parts of the grammar already
RESERVED = frozenset({CORE, "vllm", "megatron", "router", "no"})


@dataclass(frozen=True)
class Candidate:
    """An installed plugin. ``status``: "installed", "conflict", "incompatible" or "reserved"; ``problem`` says why."""

    owner: Owner
    value: str
    status: str = "installed"
    problem: str = ""

    @property
    def name(self) -> str:
        return self.owner.name

    def called(self, name: str) -> bool:
        """Is ``name`` this plugin's entry point or distribution?"""
        return canonical(name) in {canonical(self.name), canonical(self.owner.dist or "")}


def canonical(name: str) -> str:
    """Spelling in which ``-``, ``_``, ``.`` and case make no difference, as in distribution names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def core_version() -> str:
    """Version of the installed vime-core.

    Raises:
        PluginError: vime-core runs from a folder without having been installed.
    """
    try:
        return metadata.version(CORE_DIST)
    except metadata.PackageNotFoundError as error:
        raise PluginError(f"{CORE_DIST} is not installed here, only importable; pip install it (-e will do)") from error


def installed() -> list[Candidate]:
    """All installed plugins, sorted by name, then distribution."""
    points = sorted(_distinct(metadata.entry_points(group=GROUP)), key=_order)
    return [_candidate(point, points) for point in points]


def _distinct(points: Iterable[EntryPoint]) -> Iterator[EntryPoint]:
    """Editable installs can list an entry point twice: the same distribution and value is no conflict."""
    seen = set()
    for point in points:
        key = (canonical(point.name), _dist_name(point), point.value)
        if key not in seen:
            seen.add(key)
            yield point


def _order(point: EntryPoint) -> tuple[str, str]:
    return canonical(point.name), _dist_name(point)


def _dist_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown distribution"


def _version(point: EntryPoint) -> str | None:
    return point.dist.version if point.dist else None


def _candidate(point: EntryPoint, points: Sequence[EntryPoint]) -> Candidate:
    owner = Owner(point.name, _dist_name(point), _version(point))
    if canonical(point.name) in RESERVED:
        return Candidate(owner, point.value, "reserved", f"the name '{point.name}' is reserved; rename its entry point")
    misfit = core_misfit(point.dist.requires or () if point.dist else ())
    if misfit:
        return Candidate(owner, point.value, "incompatible", misfit)
    rivals = [p for p in points if p is not point and canonical(p.name) == canonical(point.name)]
    if rivals:
        claims = ", ".join(f"{_dist_name(p)} {_version(p)} ({p.value})" for p in rivals)
        return Candidate(owner, point.value, "conflict", f"also claimed by {claims}")
    return Candidate(owner, point.value)


def core_misfit(requirements: Iterable[str]) -> str:
    """Why these requirements exclude the installed core; empty where they do not. pip checks this only at install."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            return f"has a requirement that cannot be read: {one_line(error)}"
        if canonical(requirement.name) != CORE_DIST or (requirement.marker and not requirement.marker.evaluate()):
            continue
        if not requirement.specifier.contains(core_version(), prereleases=True):
            return f"needs {CORE_DIST} {requirement.specifier}, installed is {core_version()}"
    return ""
