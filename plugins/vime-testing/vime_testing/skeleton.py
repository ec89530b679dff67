"""``vime plugins new``: writes a package from the templates in ``vime_testing/templates``, with tests that pass as they
are. The examples in ``docs/plugins`` are the same text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template

from vime_core.api import UsageError
from vime_core.plugin import RESERVED, canonical, core_version, installed

#: kind -> file of the implementation
KINDS = {
    "reward": "score",
    "algorithm": "algorithm",
    "rollout": "generator",
    "environment": "environment",
    "filter": "keep",
    "correction": "correction",
    "observer": "observer",
    "options": "options",
    "command": "command",
    "weight-sync": "weight_sync",
    "device": "backend",
}
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def write_package(name: str, kind: str, folder: Path) -> Path:
    """Write ``folder/vime-NAME``.

    Returns:
        The folder of the package.

    Raises:
        UsageError: the name cannot be a plugin's, the kind is not one, or the folder is there already.
    """
    plugin = name.removeprefix("vime-")
    problem = _problem(plugin)
    if problem:
        raise UsageError(f"a plugin cannot be named '{name}': {problem}")
    package = folder / f"vime-{plugin}"
    if package.exists():
        raise UsageError(f"{package} is there already; choose another name or folder, nothing was written")
    for path, text in render(plugin, kind):
        target = package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return package


def render(plugin: str, kind: str) -> Iterator[tuple[str, str]]:
    """(path in the package, text) of every file.

    Raises:
        UsageError: no such kind.
    """
    if kind not in KINDS:
        raise UsageError(f"no kind '{kind}'; choose one of {', '.join(KINDS)}")
    values = _values(plugin, kind)
    module, part = values["module"], KINDS[kind]
    for path, source in (
        ("pyproject.toml", "pyproject.toml"),
        ("README.md", f"{kind}/README.md"),
        (f"{module}/__init__.py", "init.py"),
        (f"{module}/py.typed", None),
        (f"{module}/plugin.py", f"{kind}/plugin.py"),
        (f"{module}/{part}.py", f"{kind}/{part}.py"),
        (f"tests/test_{module}.py", f"{kind}/test.py"),
    ):
        yield path, Template(_template(source)).substitute(values) if source else ""


def _values(plugin: str, kind: str) -> dict[str, str]:
    """What stands in the templates for ``$name``."""
    words = plugin.split("-")
    major, minor = core_version().split(".")[:2]
    return {
        "plugin": plugin,
        "dist": f"vime-{plugin}",
        "module": f"vime_{plugin.replace('-', '_')}",
        "name": plugin.replace("-", "_"),
        "Class": "".join(word.capitalize() for word in words),
        "kind": kind.replace("-", " "),
        "range": f">={major}.{minor},<{major}.{int(minor) + 1}",
    }


def _template(name: str) -> str:
    return (files("vime_testing") / "templates" / f"{name}.tmpl").read_text(encoding="utf-8")


def _problem(plugin: str) -> str:
    """Why a plugin cannot have this name; empty where it can."""
    if not _NAME.fullmatch(plugin):
        return "write lower-case letters, digits and single '-', beginning with a letter"
    if canonical(plugin) in RESERVED or plugin == "cli":
        return "it is reserved"
    taken = next((c for c in installed() if c.called(plugin) or c.called(f"vime-{plugin}")), None)
    return f"{taken.owner.dist} {taken.owner.version} is installed here and has it" if taken else ""
