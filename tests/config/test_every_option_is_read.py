"""No option that does nothing: what can be set is read somewhere, or has one value only."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from vime_core.config.sections import SECTIONS, Config
from vime_core.plugin.plugins import Plugins

ROOT = Path(__file__).parents[2] / "vime_core"
FIELDS = [(section, field.name) for section in SECTIONS for field in dataclasses.fields(getattr(Config(), section))]


def read_text() -> str:
    """All of the core but what declares options and the rules about them; of the sections, what computes with them."""
    files = [
        path
        for path in ROOT.rglob("*.py")
        if path.parent.name != "rules" and path.name != "sections.py" and not path.name.endswith("_section.py")
    ]
    sections = re.findall(r"self\.\w+\.\w+", (ROOT / "config" / "sections.py").read_text())
    return "\n".join([*(path.read_text() for path in files), *sections])


@pytest.fixture(scope="module")
def read() -> frozenset[str]:
    return frozenset(re.findall(r"\.(\w+)", read_text())) | frozenset(re.findall(r'"(\w+)"', read_text()))


def single(section: str, name: str) -> bool:
    """One allowed value: there is nothing to read."""
    hint = get_type_hints(type(getattr(Config(), section)))[name]
    return get_origin(hint) is Literal and len(get_args(hint)) == 1


@pytest.mark.parametrize(("section", "name"), FIELDS, ids=lambda x: str(x))
def test_an_option_is_read(read: frozenset[str], section: str, name: str) -> None:
    assert name in read or single(section, name), f"[{section}] {name} is read by nobody"


def test_an_algorithms_option_belongs_to_an_algorithm() -> None:
    algorithms = Plugins.load(autoload=False).algorithms
    known = {name for each in algorithms.names() for name in algorithms.resolve(each)().defaults}
    fields = dataclasses.fields(Config().algorithm)
    assert {field.name for field in fields if field.metadata.get("algorithm")} <= known
