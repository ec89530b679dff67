"""What is installed, from metadata: nothing is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from importlib import metadata

from vime_core.plugin import canonical


def installed_version(dist: str) -> str | None:
    """Version of a distribution; None where it is not installed."""
    try:
        return metadata.version(dist)
    except metadata.PackageNotFoundError:
        return None


def unmet(requirements: Iterable[str], extras: Collection[str] = ("",)) -> Iterator[tuple[str, str, str | None]]:
    """(name, range, version here) of each requirement that does not hold in this environment.

    Args:
        requirements: lines of ``Requires-Dist``.
        extras: those whose requirements count; "" for what is always required.

    Raises:
        packaging.requirements.InvalidRequirement: a line cannot be read.
    """
    from packaging.requirements import Requirement

    seen = set()
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        key = (canonical(requirement.name), str(requirement.specifier))
        here = installed_version(requirement.name)
        if key in seen or (here is not None and requirement.specifier.contains(here, prereleases=True)):
            continue
        seen.add(key)
        yield requirement.name, str(requirement.specifier), here


def requirement_error(name: str, wanted: str, here: str | None) -> tuple[str, str]:
    """What is wrong with an unmet requirement, and how to mend it."""
    what = f"{name} is not installed" if here is None else f"{name} {here}, needed is {wanted}"
    return what, f"pip install '{name}{wanted}'"
