"""Writes ``docs/plugins/hooks.md`` from ``hookspecs.py`` and ``docs/plugins/examples.md`` from the templates of ``vime
plugins new``: ``python -m vime_testing.document [FOLDER]``."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vime_core import hookspecs
from vime_testing.skeleton import KINDS, render

_HOOKS = """\
# Hooks

<!-- Written by `python -m vime_testing.document`; edit vime_core/hookspecs.py instead. -->

A plugin is a module with functions of these names, marked with `@hookimpl` (`from vime_core import hookimpl`). A
function takes only the arguments that it wants. A name that is not here, an unknown argument, an `async def` or a
wrapper is an error when the plugin is loaded.

Hooks choose and announce; the objects that they register do the work. They are called at the start of a process, at the
start and end of a run, and once a step, sync and checkpoint; never for a sample, a tensor or a token. `--trace-hooks`
prints each call in the driver with its plugin and its milliseconds.
"""
_EXAMPLES = """\
# An example of each kind

<!-- Written by `python -m vime_testing.document`; edit plugins/vime-testing/vime_testing/templates/ instead. -->

`vime plugins new NAME --kind KIND` writes these files, with the name that you choose, and the tests pass as they are.
`pyproject.toml` is alike for all kinds: it names the module in the group `vime.plugins`, and a range of vime-core with
both ends.
"""
#: a comment line that opens a group: "# registration: once a process ... -----"
_GROUP = re.compile(r"^# (\w+): (.+?) ?-{5,}$", re.MULTILINE)


def hooks_page() -> str:
    """The reference of all hooks, in the order of their definition."""
    source = inspect.getsource(hookspecs)
    groups = [(match.start(), match[1], match[2]) for match in _GROUP.finditer(source)]
    parts = [_HOOKS]
    for place, node in _functions(source):
        while groups and groups[0][0] < place:
            _, title, text = groups.pop(0)
            parts.append(f"## {title.capitalize()}\n\n{text[0].upper()}{text[1:]}.\n")
        parts.append(_hook(node))
    return "\n".join(parts)


def examples_page() -> str:
    """The files of a new package of each kind."""
    parts = [_EXAMPLES]
    for kind in KINDS:
        files = dict(render(f"my-{kind}", kind))
        about = files["README.md"].split("\n\n")[1].replace("\n", " ")
        parts.append(f"## {kind}\n\n{about}\n")
        for path, text in files.items():
            if path.endswith(".py") and not path.endswith("__init__.py"):
                parts.append(f"`{path}`\n\n```python\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


PAGES = {"hooks.md": hooks_page, "examples.md": examples_page}


def _functions(source: str) -> Iterator[tuple[int, ast.FunctionDef]]:
    """(position in the source, hook)."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("vime_"):
            yield starts[node.lineno - 1], node


def _hook(node: ast.FunctionDef) -> str:
    first = "firstresult" in "".join(ast.unparse(mark) for mark in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    signature = f"def {node.name}({ast.unparse(node.args)}){returns}: ..."
    text = " ".join((ast.get_docstring(node) or "").split())
    more = " The first answer that is not None counts." if first else ""
    return f"### {node.name}\n\n```python\n{signature}\n```\n\n{text}{more}\n"


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else Path(__file__).parents[3] / "docs" / "plugins"
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
