"""``docs/architecture.md`` names files that are there, all folders of the house, and twenty places to change."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILE = re.compile(r"`([\w/-]+(?:\.py|/))(?::\w+)?`")


def there(name: str) -> bool:
    return (ROOT / name).exists() or (ROOT / "vime_core" / name).exists() or (ROOT / "cli" / "vime_cli" / name).exists()


def rows(title: str) -> list[str]:
    """The lines of the table under a heading, without its head."""
    section = PAGE.partition(f"## {title}")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def test_every_file_that_is_named_is_there() -> None:
    named = FILE.findall(PAGE)
    assert len(named) > 80
    assert [name for name in named if not there(name)] == []


def test_every_folder_of_the_core_is_described() -> None:
    folders = {f"{path.parent.name}/" for path in ROOT.glob("vime_core/*/__init__.py")}
    assert folders <= {name for row in rows("The folders") for name in FILE.findall(row)}


def test_twenty_places_to_change_are_named() -> None:
    found = rows("Where do I change")
    assert len(found) >= 20
    assert all(FILE.findall(row) for row in found)
