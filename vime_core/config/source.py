"""Read the dataclasses of an installed package without importing it.

The package is found through its import spec, its files are parsed, and each field's annotation is turned into a type
that ``vime_core.config.coerce`` understands. Names that an annotation uses are followed through the package's own
imports as far as ``Literal[...]`` aliases and base classes go; anything else becomes ``Any`` (kept as text or JSON).
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import operator
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args


class NotWritable:
    """In place of a type that no recipe or flag can spell: a function, a torch dtype."""


_SIMPLE: Mapping[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "dict": dict[str, Any],
    "Dict": dict[str, Any],
    "Mapping": dict[str, Any],
    "list": list[Any],
    "List": list[Any],
    "set": list[Any],
    "tuple": list[Any],
    "Tuple": list[Any],
    "None": type(None),
    "Callable": NotWritable,
    "ContextManager": NotWritable,
    "type": NotWritable,
    "dtype": NotWritable,
}
_SEQUENCES = ("list", "List", "set", "Set", "Sequence")


def package_folder(package: str) -> Path | None:
    """Folder of an installed top-level package, or None. Imports nothing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


class Source:
    """One parsed file of a package.

    Args:
        root: folder of the top-level package.
        path: the file.
    """

    def __init__(self, root: Path, path: Path) -> None:
        self.root = root
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        return list(_flat(self.tree.body))

    def options(self, class_name: str) -> dict[str, Any]:
        """Public annotated fields of a class and its bases: name -> type. Raises LookupError without such a class."""
        where, node = self.find(class_name, depth=6)
        if not isinstance(node, ast.ClassDef):
            raise LookupError(f"{self.path} has no class {class_name}")
        found: dict[str, Any] = {}
        for base in node.bases:
            if isinstance(base, ast.Name) and isinstance(where.find(base.id, depth=6)[1], ast.ClassDef):
                found |= where.options(base.id)
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id[0] != "_":
                found[item.target.id] = where.type_of(item.annotation)
        return found

    def choices(self) -> dict[str, Any]:
        """Option -> Literal of the ``choices`` that the file's own ``add_argument`` calls state."""
        found: dict[str, Any] = {}
        for call in ast.walk(self.tree):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument" and call.args:
                listed = next((k.value for k in call.keywords if k.arg == "choices"), None)
                if isinstance(listed, ast.List):
                    parts = [c.value for c in ast.walk(call.args[0]) if isinstance(c, ast.Constant)]
                    found["".join(map(str, parts)).lstrip("-").replace("-", "_")] = self._literal(listed.elts)
        return found

    def find(self, name: str, depth: int) -> tuple[Source, ast.AST | None]:
        """Where a name is defined (class, or right side of an assignment), following imports inside the package."""
        for item in self._statements:
            if isinstance(item, ast.ClassDef) and item.name == name:
                return self, item
            if _assigns(item, name):
                return self, item.value  # type: ignore[attr-defined]
        for item in self._statements:
            if isinstance(item, ast.ImportFrom) and depth:
                for alias in item.names:
                    path = self._module_path(item) if (alias.asname or alias.name) == name else None
                    if path is not None:
                        return Source(self.root, path).find(alias.name, depth - 1)
        return self, None

    def _module_path(self, item: ast.ImportFrom) -> Path | None:
        parts = item.module.split(".") if item.module else []
        if item.level:
            base = self.path.parents[item.level - 1]
        elif parts and parts[0] == self.root.name:
            base, parts = self.root, parts[1:]
        else:
            return None
        module = base.joinpath(*parts)
        candidates = (module.with_suffix(".py"), module / "__init__.pyi", module / "__init__.py")  # a lazy door's stub
        return next((path for path in candidates if path.is_file()), None)

    def type_of(self, node: ast.AST) -> Any:
        """The type that an annotation means; ``Any`` where it is not a simple one."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.type_of(ast.parse(node.value, mode="eval").body)
            return type(None) if node.value is None else Any
        if isinstance(node, ast.BinOp):
            return _union([self.type_of(node.left), self.type_of(node.right)])
        if isinstance(node, ast.Attribute):
            return _SIMPLE.get(node.attr, Any)
        if isinstance(node, ast.Name):
            return self._type_of_name(node.id)
        if isinstance(node, ast.Subscript):
            return self._type_of_subscript(node)
        return Any

    def _type_of_name(self, name: str) -> Any:
        if name in _SIMPLE:
            return _SIMPLE[name]
        where, definition = self.find(name, depth=6)
        if isinstance(definition, ast.Subscript | ast.BinOp):
            return where.type_of(definition)
        return Any

    def _type_of_subscript(self, node: ast.Subscript) -> Any:
        head = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head == "Literal":
            return self._literal(items)
        if head in ("Optional", "Union"):
            more = [type(None)] if head == "Optional" else []
            return _union([self.type_of(item) for item in items] + more)
        if head in _SEQUENCES:
            inner = self.type_of(items[0])
            return list[inner]  # type: ignore[valid-type]
        if head == "Annotated":
            return self.type_of(items[0])
        return _SIMPLE.get(head, Any)

    def _literal(self, items: list[ast.expr]) -> Any:
        choices: list[Any] = []
        for item in items:
            if isinstance(item, ast.Constant):
                choices.append(item.value)
                continue
            inner = self.type_of(item)
            if not get_args(inner):
                return Any
            choices.extend(get_args(inner))
        return Literal[tuple(choices)]


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for item in body:
        yield item
        if isinstance(item, ast.If):
            yield from _flat(item.body)
            yield from _flat(item.orelse)


def _assigns(item: ast.stmt, name: str) -> bool:
    if isinstance(item, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in item.targets)
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == name


def _union(parts: list[Any]) -> Any:
    writable = [part for part in parts if part is not NotWritable]
    if not [part for part in writable if part is not type(None)]:
        return NotWritable
    if Any in writable:
        writable = [part for part in writable if part in (str, bool, int, float)] + [Any]
    return functools.reduce(operator.or_, writable) if len(writable) > 1 else writable[0]
