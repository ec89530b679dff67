"""Every foreign name that the plugin relies on, kept as facts and looked up in the real sources without importing them
(``tests/support/contract.py``)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.contract import check_facts, check_written_well, foreign_imports, known_names

HERE = Path(__file__).parent
FACTS = sorted((HERE / "contract").glob("*.json"))
PLUGIN = HERE.parent / "vime_ascend"
FOREIGN = ("torch_npu", "vllm", "vllm_ascend", "mindspeed", "megatron")


@pytest.mark.parametrize("file", FACTS, ids=lambda file: file.stem)
def test_facts_hold_in_the_sources_that_are_here(file: Path) -> None:
    check_facts(file)


def test_facts_are_written_well() -> None:
    assert {file.stem for file in FACTS} == {"megatron_core", "mindspeed", "torch_npu", "vllm", "vllm_ascend"}
    check_written_well(FACTS)


def test_nothing_foreign_is_used_that_is_not_in_the_facts() -> None:
    """Imports of foreign packages, and what is asked of torch.npu, anywhere in the plugin."""
    known, used = known_names(FACTS), foreign_imports(PLUGIN, FOREIGN)
    for file in PLUGIN.glob("**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self._npu":
                used.add(f"torch_npu.npu:{node.attr}")
    assert len(used) >= 5
    methods = {name.rpartition(".")[0] for name in known}
    assert sorted(used - known - methods) == []


def test_options_that_are_refused_are_megatrons() -> None:
    from vime_ascend.flags import ABSENT, FUSED

    fields = {name.rpartition(".")[2] for name in known_names(FACTS) if name.startswith("megatron.core")}
    assert sorted({*ABSENT, *FUSED} - fields) == []
