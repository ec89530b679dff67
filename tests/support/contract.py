"""Facts about foreign packages, looked up in the real sources without importing them.

A file of facts (JSON) says for one package in which versions its names were read. Where the package is installed, or
lies unpacked in one of the folders of VIME_CONTRACT_SOURCES (``pip download torch-npu==2.13.0 --no-deps``, then unzip),
each fact is looked up; elsewhere the check is skipped with the reason. A fact may hold for some versions only.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Sources:
    """A folder that holds packages; ``version`` is of the one that is looked at."""

    root: Path
    version: str

    def text(self, module: str) -> str | None:
        path = self.root.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file.read_text(encoding="utf-8", errors="replace")
        return None

    def find(self, module: str, path: str, depth: int = 0) -> ast.AST | None:
        """The node of ``path`` ("Class.method") in ``module``, through imports, star imports and base classes."""
        text = self.text(module)
        if text is None or depth > 8:
            return None
        body: list[ast.stmt] = ast.parse(text).body
        node: ast.AST | None = None
        parts = path.split(".")
        for number, part in enumerate(parts):
            rest = ".".join(parts[number:])
            known = dict(reversed(list(bound(body))))  # the first binding, as where an import is tried, counts
            if part not in known:
                return self._elsewhere(module, node, body, rest, depth)
            node = known[part]
            if isinstance(node, ast.ImportFrom):
                name = next(a.name for a in node.names if part in (a.asname, a.name))
                there = ".".join([name, *parts[number + 1 :]])
                origin = self._origin(module, node)
                return self.find(origin, there, depth + 1) or self._module(f"{origin}.{name}", parts[number + 1 :])
            body = getattr(node, "body", [])
        return node

    def _elsewhere(
        self, module: str, owner: ast.AST | None, body: list[ast.stmt], rest: str, depth: int
    ) -> ast.AST | None:
        if isinstance(owner, ast.ClassDef):
            for base in owner.bases:
                name = base.value if isinstance(base, ast.Subscript) else base
                found = self.find(module, f"{ast.unparse(name)}.{rest}", depth + 1)
                if found is not None:
                    return found
        for statement in body:
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                found = self.find(self._origin(module, statement), rest, depth + 1)
                if found is not None:
                    return found
        return None

    def _module(self, module: str, rest: list[str]) -> ast.AST | None:
        text = self.text(module)
        return ast.parse(text) if text is not None and not rest else None

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = (
            module if (self.root.joinpath(*module.split(".")) / "__init__.py").is_file() else module.rpartition(".")[0]
        )
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return ".".join(part for part in (package, node.module) if part)


def bound(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Names that statements bind, whatever the branch."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from (
                (leaf.id, node) for target in node.targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)
            )
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from bound(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from bound(handler.body)


def parameters(node: ast.AST) -> set[str] | None:
    """What it can be called with; None when that cannot be told (a re-bound name)."""
    if isinstance(node, ast.ClassDef):
        inner = dict(bound(node.body))
        if "__init__" in inner:
            return parameters(inner["__init__"])
        return {name for name, child in inner.items() if isinstance(child, ast.AnnAssign)}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return {argument.arg for argument in every}
    return None


@cache
def sources_of(package: str, distribution: str) -> Sources | None:
    """Where the package lies, of what version."""
    for folder in filter(None, os.environ.get("VIME_CONTRACT_SOURCES", "").split(os.pathsep)):
        if Path(folder, *package.split(".")).is_dir():
            return Sources(Path(folder), _unpacked_version(Path(folder), distribution))
    found = importlib.util.find_spec(package.partition(".")[0])
    if found is None or not found.submodule_search_locations:
        return None
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Sources(Path(next(iter(found.submodule_search_locations))).parent, version(distribution))
    except PackageNotFoundError:
        return None


def _unpacked_version(folder: Path, distribution: str) -> str:
    name = distribution.replace("-", "_")
    info = next(folder.glob(f"{name}-*.dist-info"), None)
    return info.name.removesuffix(".dist-info").partition("-")[2] if info else "unknown"


def holds(fact: dict[str, Any], sources: Sources) -> str:
    """What is wrong with a fact; empty where it is true."""
    module, _, path = fact["name"].partition(":")
    text = sources.text(module)
    if text is None:
        return "" if fact.get("absent") else f"{module}: no such module"
    wrong = [f"lacks {part!r}" for part in fact.get("text", []) if part not in text]
    wrong += [f"has {part!r}" for part in fact.get("not_text", []) if part in text]
    node = sources.find(module, path) if path else None
    if path and (node is None) != bool(fact.get("absent")):
        wrong.append("is there" if fact.get("absent") else "is not there")
    have = parameters(node) if node is not None else None
    missing = sorted(set(fact.get("takes", [])) - have) if have is not None else []
    wrong += [f"does not take {missing}, it takes {sorted(have or [])}"] if missing else []
    return f"{fact['name']} {'; '.join(wrong)}" if wrong else ""


def check_facts(file: Path) -> None:
    """Every fact of the file is true of the sources that are here; skips where none are."""
    facts = json.loads(file.read_text())
    sources = sources_of(facts["package"], facts["distribution"])
    if sources is None:
        pytest.skip(f"{facts['distribution']} is not here; its facts were read in {', '.join(facts['read_in'])}")
    due = [fact for fact in facts["names"] if sources.version in fact.get("only", [sources.version])]
    wrong = [line for line in (holds(fact, sources) for fact in due) if line]
    assert not wrong, f"{facts['distribution']} {sources.version}:\n" + "\n".join(wrong)
    assert len(due) >= 2


def check_written_well(files: Sequence[Path]) -> None:
    """Facts are about their package, have known keys, and say why something must be absent."""
    for file in files:
        facts = json.loads(file.read_text())
        for fact in facts["names"]:
            assert fact["name"].startswith(facts["package"]), fact
            assert set(fact) <= {"name", "takes", "text", "not_text", "absent", "only", "why"}, fact
            assert not (fact.get("absent") or fact.get("not_text")) or fact.get("why"), fact


def known_names(files: Sequence[Path]) -> set[str]:
    return {fact["name"] for file in files for fact in json.loads(file.read_text())["names"]}


def foreign_imports(plugin: Path, packages: Sequence[str]) -> set[str]:
    """``module:name`` of everything that the plugin's sources import from these packages, inside functions too."""
    return {
        f"{node.module}:{alias.name}"
        for file in plugin.glob("**/*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in packages
        for alias in node.names
    }
