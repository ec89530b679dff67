"""The plugin lock: exactly which plugins a run uses, for its worker processes and for the record.

A list of plain records, ``{name, spec, dist, version, requested}``, in loading order, the core first. A worker imports
what the lock says, discovers nothing, and refuses to work with another version than the driver's. A plugin that is
one file has the digest of its content for a version.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from vime_core.api import PluginError
from vime_core.plugin.loading import LoadPlan
from vime_core.plugin.registry import Owner
from vime_core.plugin.targets import split_target

Record = Mapping[str, Any]


def record(owner: Owner, spec: str, requested: bool) -> dict[str, Any]:
    """One entry of the lock."""
    version = owner.version if owner.dist else _file_version(spec)
    return {"name": owner.name, "spec": spec, "dist": owner.dist, "version": version, "requested": requested}


def plans_of(lock: Sequence[Record]) -> list[LoadPlan]:
    """What this process has to load to be like the driver.

    Raises:
        PluginError: a plugin is missing here or has another version; names host, plugin and both versions.
    """
    return [_plan(entry) for entry in lock]


def _plan(entry: Record) -> LoadPlan:
    here = _installed_version(entry)
    if here != entry["version"]:
        what = f"plugin '{entry['name']}' ({entry['dist'] or entry['spec']})"
        has = f"is version {here}" if here else "is not there"
        raise PluginError(
            f"host {socket.gethostname()}: {what} {has}, the run was started with {entry['version']}; "
            f"give every host the same plugins"
        )
    owner = Owner(entry["name"], entry["dist"], entry["version"] if entry["dist"] else None)
    return LoadPlan(owner, entry["spec"], entry["requested"], needed=True)


def _installed_version(entry: Record) -> str | None:
    if not entry["dist"]:
        return _file_version(entry["spec"])
    try:
        return metadata.version(entry["dist"])
    except metadata.PackageNotFoundError:
        return None


def _file_version(spec: str) -> str | None:
    """Digest of a one-file plugin; None for a module without a distribution, or a file that is not there."""
    place, _ = split_target(spec)
    path = Path(place)
    if not place.endswith(".py") or not path.is_file():
        return None
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
