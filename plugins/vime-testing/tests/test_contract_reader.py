"""The reader of foreign sources finds what is there and misses what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.contract import Sources, holds


@pytest.fixture
def package(tmp_path: Path) -> Sources:
    (tmp_path / "p/sub").mkdir(parents=True)
    (tmp_path / "p/__init__.py").write_text("from .a import *\nfrom .sub import b as renamed\n")
    (tmp_path / "p/a.py").write_text(
        "class Base:\n    def method(self, x, *, y=1): ...\n"
        "class Child(Base):\n    field: int = 0\n"
        "try:\n    from .sub.b import far\nexcept ImportError:\n    far = None\n"
    )
    (tmp_path / "p/sub/__init__.py").write_text("")
    (tmp_path / "p/sub/b.py").write_text("def far(a, b): ...\nVALUE = 1\n")
    return Sources(tmp_path, "1.0")


@pytest.mark.parametrize(
    ("fact", "wrong"),
    [
        ({"name": "p:Child.method", "takes": ["x", "y"]}, ""),
        ({"name": "p:far", "takes": ["a"]}, ""),
        ({"name": "p:renamed"}, ""),
        ({"name": "p.sub.b", "text": ["VALUE = 1"]}, ""),
        ({"name": "p:Child.other", "absent": True}, ""),
        ({"name": "p:Child.other"}, "p:Child.other is not there"),
        ({"name": "p:far", "absent": True}, "p:far is there"),
        ({"name": "p:far", "takes": ["c"]}, "p:far does not take ['c'], it takes ['a', 'b']"),
        ({"name": "p.sub.b", "text": ["VALUE = 2"]}, "p.sub.b lacks 'VALUE = 2'"),
        ({"name": "p.sub.b", "not_text": ["VALUE"]}, "p.sub.b has 'VALUE'"),
        ({"name": "p.c:x"}, "p.c: no such module"),
    ],
)
def test_the_reader_finds_what_is_there_and_misses_what_is_not(package: Sources, fact: dict, wrong: str) -> None:
    assert holds(fact, package) == wrong
