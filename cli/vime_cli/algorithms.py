"""``vime algorithms list`` names what is registered, from metadata alone; ``info NAME`` prints an algorithm's card."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vime_cli.plugins import columns
from vime_core.plugin import load_target

if TYPE_CHECKING:
    from vime_core.plugin import Plugins


def algorithms(argv: list[str]) -> int:
    """Run ``vime algorithms ...``."""
    parser = argparse.ArgumentParser(prog="vime algorithms", description="Algorithms: --advantage-estimator NAME.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="one line an algorithm")
    detail = commands.add_parser("info", help="formula, source, needs and options of one algorithm")
    detail.add_argument("name", metavar="NAME", help="registered name, plugin/name, pkg.mod:Class or file.py:Class")
    for command in (listing, detail):
        command.add_argument("--plugin", action="append", default=[], metavar="P", help="load this plugin, too")
    chosen = parser.parse_args(argv)
    from vime_core.plugin import Plugins

    plugins = Plugins.load(chosen.plugin)
    return _info(plugins, chosen.name) if chosen.command == "info" else _list(plugins)


def _list(plugins: Plugins) -> int:
    for line in columns([(p.name, p.plugin, p.summary) for p in plugins.algorithms]):
        print(line)
    return 0


def _info(plugins: Plugins, name: str) -> int:
    algorithm = plugins.algorithms.resolve(name)
    named = name in plugins.algorithms.names()
    provider = plugins.algorithms.get(name) if named else None
    plugin, summary = (provider.plugin, provider.summary) if provider else ("from a path", "")
    card = load_target("vime_core.algorithms.info:Described").of(name, plugin, summary, algorithm)
    print(f"{name} ({plugin})" + (f": {summary}" if summary else ""))
    width = max(len(title) for title, _ in card.rows)
    for title, text in card.rows:
        _print_wrapped(f"  {title:<{width}}  ", text)
    for note in card.notes:
        _print_wrapped("  * ", note)
    return 0


def _print_wrapped(head: str, text: str, width: int = 110) -> None:
    lines: Sequence[str] = textwrap.wrap(text, width - len(head)) or [""]
    print(head + lines[0])
    for line in lines[1:]:
        print(" " * len(head) + line)
