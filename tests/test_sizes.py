"""The house stays small: sizes of files and functions, and how many parameters a function takes."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = sorted((ROOT / "vime_core").rglob("*.py"))
ALL = [*CORE, *sorted((ROOT / "cli").rglob("*.py")), *sorted((ROOT / "plugins").glob("vime-*/vime_*/**/*.py"))]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Those that a caller gives: neither ``self`` nor ``cls``, nor the ``ctx`` that torch's autograd adds."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([a for a in arguments if a.arg not in ("self", "cls", "ctx")])


def where(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"


def test_no_function_is_over_sixty_lines() -> None:
    found = [where(p, f) for p in ALL for f in functions(p) if (f.end_lineno or 0) - f.lineno + 1 > 60]
    assert found == []


#: overrides of methods whose parameters Megatron says
_FOREIGN = {
    "vime_core/training/models/attention.py __init__",
    "vime_core/training/models/attention.py forward",
    "vime_core/training/models/experts.py __init__",
}


def test_no_function_takes_more_than_five_parameters() -> None:
    """What a dataclass is built from is no function here."""
    found = {f"{p.relative_to(ROOT)} {f.name}" for p in ALL for f in functions(p) if parameters(f) > 5}
    assert found == _FOREIGN


def test_no_file_is_over_350_lines_and_the_usual_one_is_short() -> None:
    lines = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in CORE}
    assert [str(p.relative_to(ROOT)) for p, n in lines.items() if n > 350] == []
    assert 60 <= statistics.median(n for n in lines.values() if n > 1) <= 130
