"""Which way imports may point, read from the source: ``docs/architecture.md`` draws these arrows, this holds them.

A folder may import folders of lower layers, and of its own layer only those listed under ``SIBLINGS``. Imports inside
functions count; those under ``TYPE_CHECKING`` do not. String targets of the registry are no imports, which is how a
device is reached.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

#: lower may not import higher
LAYER = {
    "api": 0,
    "config": 1,
    "plugin": 2,
    "runtime": 2,
    "data": 3,
    "batch": 3,
    "algorithms": 4,
    "weights": 4,
    "observe": 4,
    "inference": 5,
    "rollout": 5,
    "training": 5,
    "devices": 6,
    "pipeline": 6,
    "vime_cli": 7,
}
#: of one layer, the first may import the second
SIBLINGS = {("plugin", "runtime")}
#: the contract's page, and the core's own plugin, which only plugin/ reaches, by name
PAGES = {"hookspecs": 1, "builtin": 3}
#: reached through the registry only
BY_NAME = {"devices"}
#: makes the folders' doors
LAZY = "lazy_loader"
HEAVY = {"torch", "numpy", "pydantic", "rich", "typer", "vllm", "ray", "transformers", "megatron", "mbridge"}
#: third parties that a folder may import; folders that are not here may import any
THIRD_PARTIES: dict[str, set[str]] = {
    "api": {"numpy"},  # inside functions only: tests/cli/test_main.py
    "config": {"msgspec", "tomli_w"},
    "algorithms": {"torch", "numpy"},
    "plugin": {"pluggy", "packaging"},
    "hookspecs": {"pluggy"},
    "builtin": set(),
}


class Import(NamedTuple):
    room: str
    target: str  # a folder or page of vime_core, or the top-level name of another package
    ours: bool
    line: str
    inside: str = ""  # what is named of the folder: a name of its door, or a file of it


class Finder(ast.NodeVisitor):
    """Imports of one module, except those for type checkers."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [(alias.name, node.lineno) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"line {node.lineno}: relative import; write the full name"
        self.found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]


def imports_of(source: str, room: str, name: str) -> Iterator[Import]:
    finder = Finder()
    finder.visit(ast.parse(source))
    for target, line in finder.found:
        top, _, rest = target.partition(".")
        if top == "__future__" or top in sys.stdlib_module_names:
            continue
        inner, _, inside = rest.partition(".")
        ours = top == "vime_core" and inner.isidentifier() and inner.islower()
        if top != "vime_core" or ours:
            yield Import(room, inner if ours else top, ours or top.startswith("vime_"), f"{name}:{line}", inside)


@cache
def all_imports() -> list[Import]:
    found: list[Import] = []
    for path in sorted([*ROOT.glob("vime_core/**/*.py"), *ROOT.glob("cli/vime_cli/**/*.py")]):
        parts = path.relative_to(ROOT).parts
        room = "vime_cli" if parts[0] == "cli" else parts[1].removesuffix(".py")
        found += imports_of(path.read_text(), room, "/".join(parts))
    return found


def breaches(imports: list[Import]) -> list[str]:
    return [f"{i.line}: {i.room} imports {i.target}" for i in imports if not allowed(i)]


def allowed(i: Import) -> bool:
    if not i.ours:
        permitted = THIRD_PARTIES.get(i.room)
        return permitted is None or i.target in permitted | {LAZY}
    if i.room == i.target:
        return True
    if i.room == "__init__" or i.target in BY_NAME:
        return False  # public names arrive when first used
    level = {**LAYER, **PAGES}
    return level.get(i.target, 99) < level[i.room] or (i.room, i.target) in SIBLINGS


def test_every_folder_has_its_layer() -> None:
    folders = {path.parent.name for path in ROOT.glob("vime_core/*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("vime_core/*.py")} - {"__init__"}
    assert folders == set(LAYER) - {"vime_cli"}
    assert modules == set(PAGES)


def test_imports_point_down() -> None:
    found = all_imports()
    assert len(found) > 100
    assert breaches(found) == []


def past_the_door(imports: list[Import]) -> list[str]:
    """Imports of another folder's file instead of a name of its door."""
    return [f"{i.line}: {i.target}.{i.inside}" for i in imports if i.ours and i.room != i.target and "." in i.inside]


def test_other_folders_use_the_door() -> None:
    assert past_the_door(all_imports()) == []
    wrong = imports_of("from vime_core.data.buffer import DataBuffer", "rollout", "x.py")
    assert past_the_door(list(wrong)) == ["x.py:1: data.buffer.DataBuffer"]


def test_every_name_of_a_door_is_there() -> None:
    """A stub is read as text, so a name that has moved would only be missed when somebody takes it."""
    for stub in ROOT.glob("vime_core/*/__init__.pyi"):
        folder = importlib.import_module(f"vime_core.{stub.parent.name}")
        missing = [name for name in folder.__all__ if getattr(folder, name).__class__ is ModuleType]
        assert missing == [], f"{stub.parent.name}: a file of the folder has the name of something in it"


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("data", "from vime_core.rollout.driver import Driver"),
        ("data", "from vime_core import rollout"),
        ("training", "from vime_core.rollout.driver import Driver"),
        ("rollout", "def f():\n    from vime_core.pipeline.run import Run"),
        ("rollout", "from vime_core.inference.group import EngineGroup"),
        ("weights", "from vime_core.inference.group import EngineGroup"),
        ("api", "import torch"),
        ("api", "from vime_core.data.buffer import DataBuffer"),
        ("api", "from vime_core.plugin.plugins import Plugins"),
        ("config", "import pydantic"),
        ("config", "from vime_core.plugin.plugins import Plugins"),
        ("plugin", "def f():\n    import torch"),
        ("plugin", "from vime_core.data.buffer import DataBuffer"),
        ("algorithms", "import ray"),
        ("algorithms", "import megatron.core"),
        ("algorithms", "from vime_core.training.step import step"),
        ("training", "from vime_core.devices.cpu import CpuBackend"),
        ("pipeline", "from vime_core.devices.cpu import CpuBackend"),
        ("pipeline", "from vime_cli.main import main"),
        ("pipeline", "import vime_cuda.backend"),
        ("observe", "from vime_testing.plugin import vime_plugins"),
        ("__init__", "from vime_core.api.sample import Sample"),
    ],
)
def test_a_wrong_import_is_found(room: str, source: str) -> None:
    assert breaches(list(imports_of(source, room, "x.py")))


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("pipeline", "from vime_core.training.step import step"),
        ("pipeline", "from vime_core.plugin.plugins import Plugins"),
        ("rollout", "from vime_core.api.sample import Sample"),
        ("inference", "from vime_core.weights.manifest import Manifest"),
        ("api", "if TYPE_CHECKING:\n    import torch\n    from vime_core.batch.step_batch import StepBatch"),
        ("algorithms", "import torch\nfrom vime_core.api.errors import ConfigError"),
        ("vime_cli", "import typer\nfrom vime_core.pipeline.run import run"),
        ("devices", "import torch\nfrom vime_core.devices.torch_device import TorchDevice"),
        ("plugin", "import pluggy\nfrom vime_core.hookspecs import hookimpl"),
    ],
)
def test_a_right_import_passes(room: str, source: str) -> None:
    assert breaches(list(imports_of(source, room, "x.py"))) == []
