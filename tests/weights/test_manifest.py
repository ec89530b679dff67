"""An update that does not fit the model, or itself, is refused; and so is a fault that is none."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from vime_core.api.errors import ConfigError, SyncError
from vime_core.weights.layout import ModelLayout
from vime_core.weights.manifest import TensorEntry
from vime_core.weights.sender import fault_sync


@pytest.mark.parametrize("fault", ["corrupt", "corrupt:0", "corrupt:-1", "drop:1", "corrupt:1:2"])
def test_an_unknown_fault_is_named(fault: str) -> None:
    with pytest.raises(ConfigError, match="--sync-fault"):
        fault_sync(fault)


def entries(**shapes: tuple[int, ...]) -> list[TensorEntry]:
    return [TensorEntry(name.replace("__", "."), "float32", shape, 0) for name, shape in shapes.items()]


def errors(layout: ModelLayout, sent: list[TensorEntry], complete: bool = True) -> str:
    try:
        layout.require(sent, complete)
    except SyncError as error:
        return str(error)
    return ""


def test_a_layout_names_what_is_wrong() -> None:
    expected = {"a": (2,), "b": (3, 4), "lm_head.weight": (2,)}
    assert errors(ModelLayout(expected), entries(a=(2,), b=(3, 4), lm_head__weight=(2,))) == ""
    without_head = entries(a=(2,), b=(3, 4))
    assert errors(ModelLayout(expected, tied=True), without_head) == ""
    assert errors(ModelLayout(expected), without_head) == "names missing: lm_head.weight"
    assert errors(ModelLayout(expected), without_head, complete=False) == ""
    wrong = entries(a=(2,), b=(4, 3), c=(1,))
    for complete in (False, True):
        assert errors(ModelLayout({"a": (2,), "b": (3, 4)}), wrong, complete) == (
            "names that the model does not have: c; shapes that differ: b [4, 3] for [3, 4]"
        )


def test_a_name_that_comes_twice_is_named_whether_or_not_the_model_is_known() -> None:
    twice = entries(a=(2,)) * 2
    assert errors(ModelLayout({}), twice) == errors(ModelLayout({"a": (2,)}), twice) == "names sent twice: a"


def test_the_layout_of_a_checkpoint_is_in_its_headers(tmp_path: Path) -> None:
    """Of the files that the index names, where there is one; of no folder nothing is known."""
    for file, name in (("one", "a"), ("two", "b"), ("consolidated", "other")):
        header = json.dumps({"__metadata__": {}, name: {"dtype": "F32", "shape": [2, 3]}}).encode()
        (tmp_path / f"{file}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert ModelLayout.of_checkpoint(str(tmp_path)).shapes == dict.fromkeys(("a", "b", "other"), (2, 3))
    files = {"a": "one.safetensors", "b": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert ModelLayout.of_checkpoint(str(tmp_path)).shapes == dict.fromkeys(("a", "b"), (2, 3))
    assert ModelLayout.of_checkpoint("org/model").shapes == {}
