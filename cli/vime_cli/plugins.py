"""``vime plugins list`` reads metadata only, ``info NAME`` imports that plugin's light module, ``check`` runs the
conformance suites that fit it, and ``new`` writes a package to start from."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import UsageError
from vime_core.plugin import Candidate, installed, load_target

if TYPE_CHECKING:
    from vime_core.plugin import LoadedPlugin, Plugins, Provider


def plugins(argv: list[str]) -> int:
    """Run ``vime plugins ...``. The arguments are parsed by argparse, which costs no import of weight."""
    parser = argparse.ArgumentParser(prog="vime plugins", description="Installed plugins and what they provide.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list installed plugins, from metadata alone")
    listing.add_argument("--json", action="store_true", help="as JSON")
    detail = commands.add_parser("info", help="show hooks, providers and options of one plugin")
    detail.add_argument("name", metavar="NAME", help="plugin, distribution, pkg.mod, ./file.py, or core")
    checking = commands.add_parser("check", help="check plugins against what vime expects of each thing they provide")
    checking.add_argument("names", metavar="NAME", nargs="*", help="as for info; default: all that are installed")
    writing = commands.add_parser("new", help="write a package with a plugin, its tests and a README")
    writing.add_argument("name", metavar="NAME", help="lower-case letters, digits and '-'; the package is vime-NAME")
    writing.add_argument(
        "--kind", required=True, help="reward, algorithm, rollout, filter ...; an unknown one lists all"
    )
    writing.add_argument("--dir", default=".", metavar="D", help="where the package's folder goes; default: here")
    chosen = parser.parse_args(argv)
    if chosen.command == "info":
        return _info(chosen.name)
    if chosen.command == "check":
        return _check(chosen.names)
    if chosen.command == "new":
        return _new(chosen.name, chosen.kind, Path(chosen.dir))
    return _list(chosen.json)


def _check(names: list[str]) -> int:
    status: int = _kit("vime_testing.check:check")(names)
    return status


def _new(name: str, kind: str, folder: Path) -> int:
    package = _kit("vime_testing.skeleton:write_package")(name, kind, folder)
    plugin = package.name.removeprefix("vime-")
    print(f"wrote {package}; next: pip install -e {package} && vime plugins check {plugin} && pytest {package}")
    return 0


def _kit(target: str) -> Any:
    """Something of the conformance kit, which is a package of its own."""
    if find_spec("vime_testing") is None:
        raise UsageError("the conformance kit is not installed; next: pip install vime-testing")
    return load_target(target)


def _list(as_json: bool) -> int:
    candidates = installed()
    if as_json:
        print(json.dumps([_record(c) for c in candidates], indent=2))
    elif not candidates:
        print("no plugins are installed; vime plugins info core shows what is built in")
    else:
        rows = [(c.name, f"{c.owner.dist} {c.owner.version}", c.status, f"{c.value} {c.problem}") for c in candidates]
        for line in columns(rows):
            print(line)
    return 0


def _record(candidate: Candidate) -> dict[str, Any]:
    owner = candidate.owner
    return {
        "name": owner.name,
        "dist": owner.dist,
        "version": owner.version,
        "status": candidate.status,
        "module": candidate.value,
        "problem": candidate.problem,
    }


def columns(rows: Iterable[tuple[str, ...]], gap: str = "  ") -> list[str]:
    """Rows of text with aligned columns."""
    table = list(rows)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))] if table else []
    return [gap.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]


def _info(name: str) -> int:
    from vime_core.plugin import Plugins

    loaded = Plugins.load([name], autoload=False, environ={})
    for member in loaded.members[1:] or loaded.members:
        for line in describe(loaded, member):
            print(line)
    return 0


def describe(loaded: Plugins, member: LoadedPlugin) -> list[str]:
    """What one loaded plugin is and provides."""
    owner = member.owner
    source = f"{owner.dist} {owner.version}" if owner.dist else "no distribution"
    lines = [f"{owner.name}  {source}  {member.spec}"]
    lines += _section("hooks", loaded.hooks_of(member))
    providers = [p for registry in loaded.registries().values() for p in registry if p.plugin == owner.name]
    lines += _section("provides", columns(_row(p) for p in providers))
    return lines + _section("options", columns(_options(loaded, owner.name)))


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _row(provider: Provider[Any]) -> tuple[str, ...]:
    here = ""
    if provider.probe is not None:
        ok, reason = provider.available()
        here = ("available here" if ok else "not available here") + (
            f": {'; '.join(reason.splitlines())}" if reason else ""
        )
    priority = f"priority {provider.priority}"
    return provider.kind, provider.qualified_name, provider.target_text, priority, here, provider.summary


def _options(loaded: Plugins, plugin: str) -> Iterable[tuple[str, ...]]:
    from vime_core.plugin import flag_of

    for field in dataclasses.fields(loaded.options[plugin]) if plugin in loaded.options else ():
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        yield flag_of(plugin, field.name), kind, f"default {default!r}", field.metadata["help"]
