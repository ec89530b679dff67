"""Which way imports may point, read from the source: ``docs/architecture.md`` draws these arrows, this holds them.

A room may import rooms of lower layers, and of its own layer only those listed under ``SIBLINGS``. Imports inside
functions count; those under ``TYPE_CHECKING`` do not. String targets of the registry are no imports, which is how a
device is reached.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

#: lower may not import higher
LAYER = {
    "interfaces": 0,
    "data": 1,
    "batch": 1,
    "algorithms": 1,
    "engine": 1,
    "rollout": 2,
    "trainer": 2,
    "weights": 2,
    "observe": 2,
    "plan": 2,
    "pipeline": 3,
    "vime_cli": 4,
}
SIBLINGS = {
    ("algorithms", "batch"),
    ("batch", "data"),
    ("engine", "data"),
    ("trainer", "weights"),
    ("trainer", "observe"),
}
#: imported by every room; of vime they import each other and what KERNEL_MAY says
FOUNDATION = {"config", "errors"}
KERNEL = {
    "admission",
    "builtin",
    "discovery",
    "hookspecs",
    "kinds",
    "loading",
    "lock",
    "messages",
    "options",
    "plugins",
    "registry",
    "selection",
    "targets",
    "tracing",
}
#: used from outside by name (pytest, recipes, the registry); no room may import them
APART = {"devices", "testing", "quickstart", "doctor"}
HEAVY = {"torch", "numpy", "pydantic", "rich", "typer", "vllm", "ray", "transformers", "megatron", "mbridge"}
#: third parties that a room may import; rooms that are not here may import any
THIRD_PARTIES = {
    "interfaces": set(),
    "config": set(),
    "errors": set(),
    "algorithms": {"torch", "numpy"},
    **{module: {"pluggy", "packaging"} for module in KERNEL},
}


class Import(NamedTuple):
    room: str
    target: str  # a room of vime_core, or the top-level name of another package
    ours: bool
    place: str


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
        inner = rest.partition(".")[0]
        ours = top == "vime_core" and inner.isidentifier() and inner.islower()
        if top != "vime_core" or ours:
            yield Import(room, inner if ours else top, ours or top.startswith("vime_"), f"{name}:{line}")


@cache
def all_imports() -> list[Import]:
    found: list[Import] = []
    for path in sorted([*ROOT.glob("vime_core/**/*.py"), *ROOT.glob("cli/vime_cli/**/*.py")]):
        parts = path.relative_to(ROOT).parts
        room = "vime_cli" if parts[0] == "cli" else parts[1].removesuffix(".py")
        found += imports_of(path.read_text(), room, "/".join(parts))
    return found


def breaches(imports: list[Import]) -> list[str]:
    return [f"{i.place}: {i.room} imports {i.target}" for i in imports if not allowed(i)]


def allowed(i: Import) -> bool:
    if not i.ours:
        permitted = THIRD_PARTIES.get(i.room)
        return permitted is None or i.target in permitted
    if i.room == i.target or i.room in APART or i.target in FOUNDATION:
        return i.target not in APART - {i.room}
    if i.room in KERNEL:
        return i.target in KERNEL | {"interfaces"}
    if i.room == "__init__":
        return False  # public names arrive when first used
    if i.room in FOUNDATION or i.target in APART:
        return False
    if i.target in KERNEL:
        return LAYER[i.room] > 0
    return LAYER.get(i.target, 99) < LAYER[i.room] or (i.room, i.target) in SIBLINGS


def test_every_room_has_its_place() -> None:
    rooms = {path.parent.name for path in ROOT.glob("vime_core/*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("vime_core/*.py")} - {"__init__"}
    assert rooms == (set(LAYER) - {"vime_cli"}) | {"config"} | APART
    assert modules == KERNEL | {"errors"}


def test_imports_point_down() -> None:
    found = all_imports()
    assert len(found) > 100
    assert breaches(found) == []


def test_siblings_do_not_go_round_in_circles() -> None:
    below: dict[str, set[str]] = {}
    for room, target in SIBLINGS:
        below.setdefault(room, set()).add(target)
    seen: set[str] = set()

    def walk(room: str, path: tuple[str, ...]) -> None:
        assert room not in path, f"siblings import each other: {' -> '.join([*path, room])}"
        for target in below.get(room, ()):
            walk(target, (*path, room))
        seen.add(room)

    for room in below:
        walk(room, ())
    assert seen >= set(below)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("data", "from vime_core.rollout.driver import Driver"),
        ("data", "from vime_core import rollout"),
        ("trainer", "from vime_core.rollout.driver import Driver"),
        ("rollout", "def f():\n    from vime_core.pipeline.run import Run"),
        ("interfaces", "import torch"),
        ("interfaces", "from vime_core.api.sample import Sample"),
        ("interfaces", "from vime_core.plugin.plugins import Plugins"),
        ("config", "import pydantic"),
        ("config", "from vime_core.plugin.plugins import Plugins"),
        ("registry", "def f():\n    import torch"),
        ("plugins", "from vime_core.api.sample import Sample"),
        ("algorithms", "import ray"),
        ("algorithms", "import megatron.core"),
        ("algorithms", "from vime_core.training.step import step"),
        ("trainer", "from vime_core.devices.cpu import CpuBackend"),
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
        ("interfaces", "if TYPE_CHECKING:\n    import torch\n    from vime_core.api.sample import Sample"),
        ("algorithms", "import torch\nfrom vime_core.api.errors import ConfigError"),
        ("vime_cli", "import typer\nfrom vime_core.pipeline.run import run"),
        ("devices", "import torch\nfrom vime_core.devices.torch_device import TorchDevice"),
        ("plugins", "import pluggy\nfrom vime_core import API_VERSION, discovery"),
    ],
)
def test_a_right_import_passes(room: str, source: str) -> None:
    assert breaches(list(imports_of(source, room, "x.py"))) == []
