"""Plugins: each installed one's range and requirements, and what is said while they are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from vime_cli.doctor.context import DoctorContext
from vime_cli.doctor.packages import requirement_error, unmet
from vime_core.api import DoctorFinding
from vime_core.plugin import CORE_DIST, Candidate, canonical, installed


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    """What was asked for has to load; what is only installed is skipped by a run, so it is a warning."""
    loaded = context.loaded
    if loaded.error:
        what, fix = _split(loaded.error)
        yield DoctorFinding("requested", False, what, fix or "see vime plugins list")
    for line in loaded.warnings:
        what, fix = _split(line)
        yield DoctorFinding("loading", True, what, fix, warns=True)
    asked = {member.owner.dist for member in loaded.plugins.members if member.requested}
    for candidate in installed():
        if not candidate.problem:
            yield _fits(candidate, candidate.owner.dist in asked)
    for member in loaded.plugins.members:
        if member.requested and not member.owner.dist:
            yield DoctorFinding("requested", True, f"plugin '{member.name}' loads from {member.spec}")


def _fits(candidate: Candidate, asked: bool) -> DoctorFinding:
    """An installed plugin that metadata alone does not rule out: what else it requires."""
    owner = candidate.owner
    requirements = metadata.requires(owner.dist) or [] if owner.dist else []
    lacking = [requirement_error(*one) for one in unmet(requirements)]
    if lacking:
        what = "; ".join(problem for problem, _ in lacking)
        return DoctorFinding("range", not asked, f"{owner}: {what}", "; ".join(fix for _, fix in lacking), warns=True)
    return DoctorFinding("range", True, f"{owner} fits: {_range(requirements)}")


def _range(requirements: list[str]) -> str:
    from packaging.requirements import Requirement

    read = [Requirement(line) for line in requirements]
    mine = [one for one in read if canonical(one.name) == CORE_DIST]
    return f"{CORE_DIST} {mine[0].specifier}" if mine else f"it names no range of {CORE_DIST}"


def _split(line: str) -> tuple[str, str]:
    """A message of the kernel is ``what; what to do``."""
    what, _, fix = " ".join(line.split("\n")).partition("; ")
    return what, fix
