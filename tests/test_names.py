"""No device and no plugin has a name in the core: what it needs to know of them, it asks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = re.compile(
    r"(?<![a-z])(cuda|nccl|npus?|torch_npu|ascend|hccl|cann|camem|mindspeed|vime[-_](cuda|ascend|agents))(?![a-z])",
    re.I,
)
#: what Megatron-core calls its device, in the two files that make it mean another
MEGATRONS = {"shims.py", "torch_proxy.py"}


def found(path: Path) -> list[str]:
    lines = path.read_text().replace("model_parallel_cuda_manual_seed", "").splitlines()  # Megatron's
    names = [(number, match.group().lower()) for number, line in enumerate(lines, 1) for match in NAMES.finditer(line)]
    return [
        f"{path.relative_to(ROOT)}:{number} {name}"
        for number, name in names
        if not (path.parent.name == "megatron" and path.name in MEGATRONS and name == "cuda")
    ]


def test_the_core_names_no_device_and_no_plugin() -> None:
    files = [*(ROOT / "vime_core").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    assert len(files) > 300
    assert [line for path in files if "cpu" not in path.parts for line in found(path)] == []


def test_a_name_would_be_found(tmp_path: Path) -> None:
    text = 'device = "cuda"\nif name == "Ascend": ...\nimport torch_npu\nx.npu()\nboundary, canned = input, output\n'
    names = [match.group().lower() for match in NAMES.finditer(text)]
    assert names == ["cuda", "ascend", "torch_npu", "npu"]
