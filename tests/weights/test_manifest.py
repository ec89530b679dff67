"""A manifest that does not fit the model, or itself, is refused; and so is a fault that is none."""

from __future__ import annotations

import pytest

from vime_core.api.errors import ConfigError
from vime_core.inference.vllm.layout import layout_faults
from vime_core.weights.manifest import Manifest, TensorEntry
from vime_core.weights.sender import fault_sync


@pytest.mark.parametrize("fault", ["corrupt", "corrupt:0", "corrupt:-1", "drop:1", "corrupt:1:2"])
def test_an_unknown_fault_is_named(fault: str) -> None:
    with pytest.raises(ConfigError, match="--sync-fault"):
        fault_sync(fault)


def manifest_of(**shapes: tuple[int, ...]) -> Manifest:
    entries, offset = [], 0
    for name, shape in shapes.items():
        entries.append(TensorEntry(name.replace("__", "."), "float32", shape, offset))
        offset += entries[-1].nbytes
    return Manifest(1, "shared_memory", "", offset, tuple(entries), {})


def test_layout_faults_name_what_is_wrong() -> None:
    expected = {"a": (2,), "b": (3, 4), "lm_head.weight": (2,)}
    good = manifest_of(a=(2,), b=(3, 4), lm_head__weight=(2,))
    assert layout_faults(good, expected, tied=False) == []
    without_head = manifest_of(a=(2,), b=(3, 4))
    assert layout_faults(without_head, expected, tied=True) == []
    assert layout_faults(without_head, expected, tied=False) == ["names missing: lm_head.weight"]
    wrong = manifest_of(a=(2,), b=(4, 3), c=(1,))
    assert layout_faults(wrong, {"a": (2,), "b": (3, 4)}, tied=False) == [
        "names that the model does not have: c",
        "shapes that differ: b [4, 3] for [3, 4]",
    ]


def test_tensors_that_overlap_or_leave_the_buffer_are_faults() -> None:
    one, two = TensorEntry("a", "float32", (4,), 0), TensorEntry("b", "float32", (4,), 8)
    overlapping = Manifest(1, "shared_memory", "", 24, (one, two), {})
    assert layout_faults(overlapping, {}, tied=False) == ["b overlaps the tensor before it"]
    outside = Manifest(1, "shared_memory", "", 8, (one,), {})
    assert layout_faults(outside, {}, tied=False) == ["tensors need 16 bytes, the buffer has 8"]
    twice = Manifest(1, "shared_memory", "", 32, (one, TensorEntry("a", "float32", (4,), 16)), {})
    assert layout_faults(twice, {}, tied=False) == ["names sent twice: a"]


def test_a_manifest_that_contradicts_itself_is_not_read() -> None:
    wire = manifest_of(a=(2,)).to_wire()
    with pytest.raises(ValueError, match="differ in length"):
        Manifest.from_wire({**wire, "offsets": []})
    with pytest.raises(ValueError, match="unknown type"):
        Manifest.from_wire({**wire, "dtypes": ["complex64"]})
